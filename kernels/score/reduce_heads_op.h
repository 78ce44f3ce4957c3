#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"
#include "kernels/rows/search.h"

namespace kvlab {

// Tokens of the same position, or the i-th of each row, get the sum, the mean or the root of the sum over the KV heads that hold them.
// kFirstMax: the first of kv_heads rows of equal length gets their largest, entry by entry.
struct ReduceHeads {
  enum class Kind : std::uint8_t { kSum, kMean, kRootOfSum, kFirstMax };
  KvRows kv;
  Kind kind = Kind::kMean;
  float* scores = nullptr;          // [kv.total()]
  bool by_position = true;          // false: by index; only kv's lengths are read, in any units
  float* const* entries = nullptr;  // [kv.num_rows] of kFirstMax, which is by index

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    OpCall c{.op = "reduce_heads", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = (by_position ? 12 : 8) * n, .flops = n};
    if (kind == Kind::kFirstMax) c.op = "largest_entries", c.outputs = n / kv.kv_heads, c.bytes = 4 * n + 4 * n / kv.kv_heads;
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) {
    visit(entries, kv.num_rows);
    if (by_position) return visit(kv);
    kv.page = kv.page_begin = nullptr;  // not read
    visit(kv.len, kv.num_rows), visit(kv.first, kv.num_rows + 1);
  }

  // The first head writes all scores.
  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return kv.len[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    const auto r = static_cast<std::int32_t>(row), token = static_cast<std::int32_t>(i);
    const std::int32_t row0 = r / kv.kv_heads * kv.kv_heads, wanted = position(r, token);
    for (std::int32_t other = row0; other < r; ++other)
      if (token_at(other, wanted, token) >= 0) return;
    float sum = kind == Kind::kFirstMax ? entries[r][i] : 0.0F;
    std::int32_t heads = 0;
    for (std::int32_t other = r; other < row0 + kv.kv_heads; ++other) {
      const std::int32_t at = token_at(other, wanted, token);
      if (at < 0) continue;
      const float x = score(other, at);
      sum = kind != Kind::kFirstMax ? sum + x : sum < x ? x : sum;
      ++heads;
    }
    if (kind == Kind::kMean) sum /= static_cast<float>(heads);
    if (kind == Kind::kRootOfSum) sum = std::sqrt(sum);
    for (std::int32_t other = r; other < (kind == Kind::kFirstMax ? r + 1 : row0 + kv.kv_heads); ++other) {
      const std::int32_t at = token_at(other, wanted, token);
      if (at >= 0) score(other, at) = sum;
    }
  }

 private:
  [[nodiscard]] KVLAB_BODY float& score(std::int32_t row, std::int32_t i) const {
    return kind == Kind::kFirstMax ? entries[row][i] : scores[kv.first[row] + i];
  }
  [[nodiscard]] KVLAB_BODY std::int32_t position(std::int32_t row, std::int32_t i) const {
    return by_position ? kv.position[kv.slot(row, i)] : i;
  }
  // Token of `row` at this position, -1: none. Positions ascend along a row.
  [[nodiscard]] KVLAB_BODY std::int32_t token_at(std::int32_t row, std::int32_t wanted, std::int32_t guess) const {
    if (guess < kv.len[row] && position(row, guess) == wanted) return guess;
    const std::int32_t at = count_first(kv.len[row], [&](std::int32_t i) { return position(row, i) < wanted; });
    return at < kv.len[row] && position(row, at) == wanted ? at : -1;
  }
};
KVLAB_EACH_OP(ReduceHeads)

}  // namespace kvlab
