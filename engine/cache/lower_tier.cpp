#include "engine/cache/lower_tier.h"

#include <algorithm>

#include "kernels/storage/stored/rows_view.h"
#include "kernels/storage/token_copy_op.h"

namespace kvlab {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

std::int64_t vector_bytes(const KvRows& rows) { return rows.head_dim * element_bytes(rows.type); }

// Between rows and `stored`, in the same memory.
void copy(const KvRows& rows, const TensorMemory& memory, bool values, const LowerTier::Lists& lists, TokenCopy::Way way, void* stored) {
  if (lists.token.empty()) return;
  const Listing listed(lists.first, lists.token, memory);
  run_in(memory, TokenCopy{.tokens = listed.of(rows, values), .way = way, .stored = stored});
}

// All bits of a row's first `tokens`.
void poison(const KvRows& rows, const TensorMemory& memory, std::int32_t r, std::int64_t tokens) {
  const std::int64_t bytes = vector_bytes(rows);
  for (std::int64_t i = 0; i < tokens; i += rows.page_tokens) {
    const std::int64_t slot = rows.slot(r, static_cast<std::int32_t>(i)), count = std::min<std::int64_t>(rows.page_tokens, tokens - i);
    memory.fill(reinterpret_cast<std::uint8_t*>(rows.k) + slot * bytes, 0xFF, count * bytes);
    memory.fill(reinterpret_cast<std::uint8_t*>(rows.v) + slot * bytes, 0xFF, count * bytes);
  }
}

}  // namespace

void HostTokens::put(std::int32_t token, const std::uint8_t* vector, std::int64_t bytes) {
  slot_of_[at(token)] = static_cast<std::int32_t>(token_of_.size());
  token_of_.push_back(token);
  data_.insert(data_.end(), vector, vector + bytes);
}

// The last token takes its place.
void HostTokens::take(std::int32_t token, std::uint8_t* to, std::int64_t bytes) {
  const std::int32_t slot = slot_of_[at(token)], last = token_of_.back();
  std::uint8_t *const here = data_.data() + slot * bytes, *const end = data_.data() + bytes * (std::ssize(token_of_) - 1);
  std::copy_n(here, bytes, to);
  if (here != end) std::copy_n(end, bytes, here);
  token_of_[at(slot)] = last;
  slot_of_[at(last)] = slot;
  slot_of_[at(token)] = -1;
  token_of_.pop_back();
  data_.resize(data_.size() - static_cast<std::size_t>(bytes));
}

LowerTier::LowerTier(Selector::Lower lower, std::int32_t kv_heads) : lower_(lower) {
  if (lower == Selector::Lower::kKeysAndValues) k_.host.resize(at(kv_heads));
  if (lower != Selector::Lower::kNothing) v_.host.resize(at(kv_heads));
}

std::int64_t LowerTier::take(const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> stays) {
  const std::int64_t stored = store(k_, rows, memory, stays) + store(v_, rows, memory, stays);
  for (Side* const side : {&k_, &v_}) {
    side->listed = listed_here(*side, rows);
    side->here.settle_in(memory);
    side->here.resize(std::ssize(side->listed.token) * vector_bytes(rows));
    copy(rows, memory, side == &v_, side->listed, TokenCopy::Way::kFromPages, side->here.data());
  }
  len_.assign(rows.len, rows.len + rows.num_rows);
  marks_.settle_in(memory);
  marks_.resize(rows.total() * (1 + rows.num_words));
  run_in(memory, copy_words(rows, TokenCopy::Way::kFromPages, marks_.data()));
  is_resting_ = true;
  return stored;
}

std::int64_t LowerTier::store(Side& side, const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> stays) {
  Lists leaving;
  for (std::size_t h = 0; h < side.host.size(); ++h) {
    side.host[h].resize(rows.len[h]);
    for (std::int32_t i = 0; i < rows.len[h]; ++i)
      if (!side.host[h].has(i) && !std::binary_search(stays[h].begin(), stays[h].end(), i)) leaving.token.push_back(i);
    leaving.end_row();
  }
  const std::int64_t each = vector_bytes(rows), bytes = std::ssize(leaving.token) * each;
  if (bytes == 0) return 0;
  std::vector<std::uint8_t> vectors;
  if (!memory.on_host()) {
    TensorArray<std::uint8_t> packed(memory);
    packed.resize(bytes);
    copy(rows, memory, &side == &v_, leaving, TokenCopy::Way::kFromPages, packed.data());
    vectors = packed.on_host();
  }
  for (std::size_t h = 0; h < side.host.size(); ++h)
    for (std::int64_t i = leaving.first[h]; i < leaving.first[h + 1]; ++i)
      side.host[h].put(leaving.token[at(i)], memory.on_host() ? vector_in(side, rows, h, leaving.token[at(i)]) : vectors.data() + i * each,
                       each);
  return bytes;
}

// For rows in CPU memory.
std::uint8_t* LowerTier::vector_in(const Side& side, const KvRows& rows, std::size_t head, std::int32_t token) const {
  auto* const pool = reinterpret_cast<std::uint8_t*>(&side == &v_ ? rows.v : rows.k);
  return pool + rows.slot(static_cast<std::int32_t>(head), token) * vector_bytes(rows);
}

LowerTier::Lists LowerTier::listed_here(const Side& side, const KvRows& rows) {
  Lists here;
  for (std::int32_t h = 0; h < rows.num_rows; ++h) {
    for (std::int32_t i = 0; i < rows.len[h]; ++i)
      if (side.host.empty() || !side.host[at(h)].has(i)) here.token.push_back(i);
    here.end_row();
  }
  return here;
}

void LowerTier::raise(const KvRows& rows, bool poisons) {
  const TensorMemory& memory = marks_.memory();
  for (std::int32_t h = 0; poisons && h < rows.num_rows; ++h) poison(rows, memory, h, len_[at(h)]);
  for (Side* const side : {&k_, &v_}) {
    copy(rows, memory, side == &v_, side->listed, TokenCopy::Way::kIntoPages, side->here.data());
    for (std::size_t h = 0; h < side->host.size(); ++h) side->host[h].resize(rows.len[h]);
  }
  run_in(memory, copy_words(RowsView(rows, 0, len_).rows(), TokenCopy::Way::kIntoPages, marks_.data()));
  is_resting_ = false;
}

std::int64_t LowerTier::fetch(const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> tokens) {
  return fetch(k_, rows, memory, tokens) + fetch(v_, rows, memory, tokens);
}

std::int64_t LowerTier::fetch(Side& side, const KvRows& rows, TensorMemory memory, std::span<const std::vector<std::int32_t>> tokens) {
  Lists coming;
  for (std::size_t h = 0; h < side.host.size(); ++h) {
    for (const std::int32_t token : tokens[h])
      if (side.host[h].has(token)) coming.token.push_back(token);
    coming.end_row();
  }
  const std::int64_t each = vector_bytes(rows), bytes = std::ssize(coming.token) * each;
  std::vector<std::uint8_t> vectors(memory.on_host() ? 0 : at(bytes));
  for (std::size_t h = 0; h < side.host.size(); ++h)
    for (std::int64_t i = coming.first[h]; i < coming.first[h + 1]; ++i)
      side.host[h].take(coming.token[at(i)], memory.on_host() ? vector_in(side, rows, h, coming.token[at(i)]) : vectors.data() + i * each,
                        each);
  if (memory.on_host() || bytes == 0) return bytes;
  TensorArray<std::uint8_t> packed(memory);
  packed.append_from_host(vectors.data(), bytes);
  copy(rows, memory, &side == &v_, coming, TokenCopy::Way::kIntoPages, packed.data());
  return bytes;
}

void LowerTier::move_to(const TensorMemory& memory) {
  k_.here.move_to(memory);
  v_.here.move_to(memory);
  marks_.move_to(memory);
}

std::int64_t LowerTier::host_bytes() const {
  std::int64_t bytes = 0;
  for (const Side* const side : {&k_, &v_})
    for (const HostTokens& row : side->host) bytes += row.bytes();
  return bytes;
}

}  // namespace kvlab
