#pragma once

#include <bit>

#include "kernels/rows/elements.h"
#include "kernels/rows/key_estimate.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Decoded estimates of the keys of tokens [from[r], len[r]): levels of `bits` bits, or rotated in 8 bits.
struct EstimateKeys {
  KvRows kv;
  std::int32_t bits = 4;
  bool rotated = false;
  const std::int32_t* from = nullptr;  // [kv.num_rows]
  float* const* estimate = nullptr;    // [kv.num_rows] -> [len, head_dim]

  // Keys are read, estimates written; per channel 4 operations, or one for each step of the rotation.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = rotated ? "index_keys" : "estimate_keys", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r)
      if (from[r] < kv.len[r]) c.tokens += kv.len[r] - from[r];
    c.outputs = c.tokens;
    c.bytes = c.tokens * (std::int64_t{kv.head_dim} * kv.kv_bytes + estimate_bytes(kv.head_dim, rotated ? 8 : bits));
    c.flops = (rotated ? std::countr_zero(static_cast<std::uint64_t>(kv.head_dim)) : 4) * c.tokens * kv.head_dim;
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) { visit(from, kv.num_rows), visit(estimate, kv.num_rows), visit(kv); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t d = kv.head_dim;
    team.each(kv.len[row] - from[row], [&](std::int64_t i) {
      const auto key = key_of(team, kv, row, from[row] + i);
      float* const to = estimate[row] + (from[row] + i) * d;
      if (rotated)
        write_rotated(key, d, to);
      else
        write_levels(key, d, bits, to);
    });
  }
};
KVLAB_ROW_OP(EstimateKeys)

}  // namespace kvlab
