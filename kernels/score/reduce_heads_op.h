#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"
#include "kernels/rows/search.h"

namespace kvlab {

// Tokens of the same position, or the i-th of each row, get the sum, the mean or the root of the sum over the KV heads that hold them. In
// place.
struct ReduceHeads {
  enum class Kind : std::uint8_t { kSum, kMean, kRootOfSum };
  KvRows kv;
  Kind kind = Kind::kMean;
  float* scores = nullptr;  // [kv.total()]
  bool by_position = true;  // false: by index; only kv's lengths are read, in any units

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    return {.op = "reduce_heads", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = (by_position ? 12 : 8) * n, .flops = n};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) { visit(kv); }

  // The first head writes all scores.
  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return kv.len[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    const auto r = static_cast<std::int32_t>(row), token = static_cast<std::int32_t>(i);
    const std::int32_t row0 = r / kv.kv_heads * kv.kv_heads, wanted = position(r, token);
    for (std::int32_t other = row0; other < r; ++other)
      if (token_at(other, wanted, token) >= 0) return;
    float sum = 0.0F;
    std::int32_t heads = 0;
    for (std::int32_t other = r; other < row0 + kv.kv_heads; ++other) {
      const std::int32_t at = token_at(other, wanted, token);
      if (at >= 0) sum += scores[kv.first[other] + at], ++heads;
    }
    if (kind == Kind::kMean) sum /= static_cast<float>(heads);
    if (kind == Kind::kRootOfSum) sum = std::sqrt(sum);
    for (std::int32_t other = r; other < row0 + kv.kv_heads; ++other) {
      const std::int32_t at = token_at(other, wanted, token);
      if (at >= 0) scores[kv.first[other] + at] = sum;
    }
  }

 private:
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
