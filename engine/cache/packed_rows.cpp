#include "engine/cache/packed_rows.h"

#include <algorithm>

#include "base/parallel.h"

namespace kvlab {

namespace {

// K or V, by ListedTokens::values.
float* array_of(const KvRows& kv, std::size_t side) { return side == 0 ? kv.k : kv.v; }

// Calls f(slot, token, count) for stretches of a row's tokens [begin, begin + count) that lie in one page.
template <class F>
void for_each_stretch(const KvRows& kv, std::int32_t row, TokenRun run, F&& f) {
  for (std::int32_t at = run.begin, end = run.begin + run.count; at < end;) {
    const std::int32_t count = std::min(end - at, kv.page_tokens - at % kv.page_tokens);
    f(kv.slot(row, at), at, count);
    at += count;
  }
}

std::vector<TokenRun> runs_without(const std::vector<std::unique_ptr<RowCode>>& codes, std::int32_t len) {
  std::vector<bool> is_encoded(static_cast<std::size_t>(len), false);
  for (const auto& code : codes)
    for (const TokenRun& run : code->list().runs) std::fill_n(is_encoded.begin() + run.begin, run.count, true);
  std::vector<TokenRun> runs;
  for (std::int32_t i = 0; i < len; ++i) {
    if (is_encoded[static_cast<std::size_t>(i)]) continue;
    if (runs.empty() || runs.back().begin + runs.back().count != i) runs.push_back({i, 0});
    ++runs.back().count;
  }
  return runs;
}

}  // namespace

void PackedRows::note_lengths(const KvRows& kv, std::int32_t first_row, std::int32_t new_tokens) {
  for (std::size_t h = 0; h < rows_.size(); ++h) {
    const std::int32_t len = kv.len[first_row + static_cast<std::int32_t>(h)];
    is_loose_ |= has_codes(rows_[h]) && len != rows_[h].len + (is_noted_ ? 0 : new_tokens);
    rows_[h].len = len;
  }
  is_noted_ = true;
}

void PackedRows::keep(Side& side, std::unique_ptr<RowCode> code) {
  if (side.codes.empty() || !side.codes.back()->take_over(*code)) side.codes.push_back(std::move(code));
}

void PackedRows::settle(const KvRows& kv, std::int32_t first_row, std::int32_t new_tokens) {
  note_lengths(kv, first_row, new_tokens);
  is_noted_ = is_resting_ = false;
  if (is_loose_) rows_ = std::vector<Row>(rows_.size());
}

bool PackedRows::can_rest() const { return std::any_of(rows_.begin(), rows_.end(), has_codes); }

void PackedRows::take(const KvRows& kv, std::int32_t first_row) {
  for (std::size_t h = 0; h < rows_.size(); ++h) take_row(rows_[h], kv, first_row + static_cast<std::int32_t>(h));
  is_resting_ = true;
}

void PackedRows::take_row(Row& row, const KvRows& kv, std::int32_t r) {
  const std::int32_t n = kv.len[r], d = kv.head_dim;
  row.position.resize(static_cast<std::size_t>(n));
  row.words.resize(static_cast<std::size_t>(n) * static_cast<std::size_t>(kv.num_words));
  for_each_stretch(kv, r, {0, n}, [&](std::int64_t slot, std::int32_t at, std::int32_t count) {
    std::copy_n(kv.position + slot, count, row.position.data() + at);
    for (std::int64_t w = 0; w < kv.num_words; ++w) std::copy_n(kv.words + w * kv.pool_tokens + slot, count, row.words.data() + w * n + at);
  });
  for (std::size_t s = 0; s < row.sides.size(); ++s) {
    Side& side = row.sides[s];
    side.dense_runs = runs_without(side.codes, n);
    std::int64_t tokens = 0;
    for (const TokenRun& run : side.dense_runs) tokens += run.count;
    side.dense.resize(static_cast<std::size_t>(tokens * d));
    float* to = side.dense.data();
    for (const TokenRun& run : side.dense_runs)
      for_each_stretch(kv, r, run, [&](std::int64_t slot, std::int32_t, std::int32_t count) {
        to = std::copy_n(array_of(kv, s) + slot * d, std::int64_t{count} * d, to);
      });
  }
}

void PackedRows::fill(const KvRows& kv, std::int32_t first_row) {
  for_each_in_parallel(static_cast<std::int64_t>(rows_.size()),
                       [&](std::int64_t h) { fill_row(rows_[static_cast<std::size_t>(h)], kv, first_row + static_cast<std::int32_t>(h)); });
}

void PackedRows::fill_row(const Row& row, const KvRows& kv, std::int32_t r) {
  const auto n = static_cast<std::int32_t>(row.position.size());
  const std::int64_t d = kv.head_dim;
  for_each_stretch(kv, r, {0, n}, [&](std::int64_t slot, std::int32_t at, std::int32_t count) {
    std::copy_n(row.position.data() + at, count, kv.position + slot);
    for (std::int64_t w = 0; w < kv.num_words; ++w) std::copy_n(row.words.data() + w * n + at, count, kv.words + w * kv.pool_tokens + slot);
  });
  for (std::size_t s = 0; s < row.sides.size(); ++s) {
    const Side& side = row.sides[s];
    const float* from = side.dense.data();
    for (const TokenRun& run : side.dense_runs)
      for_each_stretch(kv, r, run, [&](std::int64_t slot, std::int32_t, std::int32_t count) {
        std::copy_n(from, count * d, array_of(kv, s) + slot * d);
        from += count * d;
      });
    KvRows one = kv;
    const std::int64_t row_first[] = {0, kv.len[r]};
    one.num_rows = 1, one.kv_heads = 1, one.len = kv.len + r, one.page_begin = kv.page_begin + r, one.first = row_first;
    for (const auto& code : side.codes) {
      const std::vector<std::int32_t> index = code->list().index();
      const std::int64_t first[] = {0, static_cast<std::int64_t>(index.size())};
      code->decode({one, first, index.data(), s == 1});
    }
  }
}

std::int64_t PackedRows::kv_bytes() const {
  std::int64_t bytes = 0;
  for (const Row& row : rows_) {
    for (const Side& side : row.sides) {
      bytes += static_cast<std::int64_t>(side.dense.size() * sizeof(float));
      for (const auto& code : side.codes) bytes += code->bytes();
    }
  }
  return bytes;
}

std::int64_t PackedRows::beside_bytes() const {
  std::int64_t bytes = 0;
  for (const Row& row : rows_) bytes += static_cast<std::int64_t>(4 * (row.position.size() + row.words.size()));
  return bytes;
}

}  // namespace kvlab
