#include "engine/cache/packed_rows.h"

#include <algorithm>
#include <span>

#include "kernels/storage/token_copy_op.h"

namespace kvlab {

namespace {

std::vector<RowList> lists_without(const std::vector<std::unique_ptr<StoredCode>>& codes, const KvRows& own) {
  std::vector<RowList> rest;
  for (std::int32_t h = 0; h < own.num_rows; ++h) {
    std::vector<const RowList*> encoded;
    for (const auto& code : codes) encoded.push_back(&code->lists()[static_cast<std::size_t>(h)]);
    rest.push_back(tokens_outside(encoded, own.len[h]));
  }
  return rest;
}

std::span<const RowList> part(const std::vector<RowList>& lists, std::int32_t begin, std::int32_t count) {
  return std::span(lists).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

}  // namespace

bool PackedRows::has_codes(std::size_t head) const {
  for (const Side& side : sides_)
    for (const auto& code : side.codes)
      if (code->lists()[head].tokens > 0) return true;
  return false;
}

void PackedRows::note_lengths(const KvRows& kv, std::int32_t first_row, std::int32_t new_tokens) {
  for (std::size_t h = 0; h < len_.size(); ++h) {
    const std::int32_t len = kv.len[first_row + static_cast<std::int32_t>(h)];
    is_loose_ |= has_codes(h) && len != len_[h] + (is_noted_ ? 0 : new_tokens);
    len_[h] = len;
  }
  is_noted_ = true;
}

void PackedRows::Side::keep(std::unique_ptr<StoredCode> code) {
  if (codes.empty() || !codes.back()->take_over(*code)) codes.push_back(std::move(code));
}

void PackedRows::keep(const DecodeOp& op, const ListedTokens& tokens, std::int32_t first_row, std::int32_t new_tokens) {
  note_lengths(tokens.kv, first_row, new_tokens);
  if (is_loose_) return;
  const std::vector<RowList> lists = row_lists(tokens, first_row, kv_heads());
  if (std::any_of(lists.begin(), lists.end(), [](const RowList& list) { return list.tokens > 0; }))
    sides_[tokens.values ? 1 : 0].keep(op.stored({memory_, first_row, lists}));
}

void PackedRows::settle(const KvRows& kv, std::int32_t first_row, std::int32_t new_tokens) {
  note_lengths(kv, first_row, new_tokens);
  is_noted_ = is_resting_ = false;
  if (!is_loose_) return;
  for (Side& side : sides_) side = Side(memory_);
  words_ = RowNumbers<std::uint32_t>(memory_);
}

void PackedRows::take(const KvRows& kv, std::int32_t first_row) {
  const RowsView own(kv, first_row, kv_heads());
  std::vector<std::int64_t> words;
  for (const std::int32_t len : len_) words.push_back(std::int64_t{1 + kv.num_words} * len);
  run_in(memory_, copy_words(own.rows(), TokenCopy::Way::kFromPages, words_.make_room(words)));
  for (std::size_t s = 0; s < sides_.size(); ++s) take_side(s, own.rows());
  is_resting_ = true;
}

void PackedRows::take_side(std::size_t s, const KvRows& own) {
  Side& side = sides_[s];
  side.dense_lists = lists_without(side.codes, own);
  std::vector<std::int64_t> bytes;
  for (const RowList& list : side.dense_lists) bytes.push_back(std::int64_t{list.tokens} * own.head_dim * element_bytes(own.type));
  const Listing list(side.dense_lists, memory_);
  run_in(memory_, TokenCopy{.tokens = list.of(own, s == 1), .stored = side.dense.make_room(bytes)});
}

void PackedRows::move_to(const TensorMemory& memory) {
  for (Side& side : sides_) {
    side.dense.move_to(memory);
    for (const auto& code : side.codes) code->move_to(memory);
  }
  words_.move_to(memory);
  memory_ = memory;
}

void PackedRows::fill(const KvRows& kv, std::int32_t first_row, std::int32_t begin, std::int32_t count) const {
  const RowsView own(kv, first_row + begin, std::span(len_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)));
  run_in(memory_, copy_words(own.rows(), TokenCopy::Way::kIntoPages, words_.row(begin)));
  for (std::size_t s = 0; s < sides_.size(); ++s) {
    const Listing dense(part(sides_[s].dense_lists, begin, count), memory_);
    run_in(memory_, TokenCopy{dense.of(own.rows(), s == 1), {}, TokenCopy::Way::kIntoPages, sides_[s].dense.row(begin)});
    for (const auto& code : sides_[s].codes) {
      const Listing listed(part(code->lists(), begin, count), memory_);
      code->decode(listed.of(own.rows(), s == 1), begin);
    }
  }
}

std::int64_t PackedRows::kv_bytes() const {
  std::int64_t bytes = 0;
  for (const Side& side : sides_) {
    bytes += side.dense.bytes();
    for (const auto& code : side.codes) bytes += code->bytes();
  }
  return bytes;
}

std::vector<std::int32_t> PackedRows::positions(std::int32_t head) const {
  return memory_.to_host(reinterpret_cast<const std::int32_t*>(words_.row(head)), len_[static_cast<std::size_t>(head)]);
}

}  // namespace kvlab
