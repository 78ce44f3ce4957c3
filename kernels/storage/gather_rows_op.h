#pragma once

#include "base/ceil_div.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Copies a sequence's rows of equal length to [tokens, num_rows, head_dim] in float32. Not logged by a policy.
struct GatherRows {
  static constexpr std::int64_t kPart = 256;  // tokens
  static constexpr bool kInParallel = true;
  KvRows kv;
  std::int32_t tokens = 0;  // of each row
  float *k = nullptr, *v = nullptr;

  [[nodiscard]] OpCall cost() const {
    return {.op = "gather_rows",
            .rows = kv.num_rows,
            .tokens = kv.total(),
            .outputs = kv.total(),
            .bytes = 4 * kv.total() * kv.head_dim * kv.kv_bytes};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows * ceil_div<std::int64_t>(tokens, kPart); }
  void shapes(auto&& visit) { visit(kv); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t part) const {
    const auto row = static_cast<std::int32_t>(part % kv.num_rows);
    const std::int64_t begin = part / kv.num_rows * kPart, rest = tokens - begin, d = kv.head_dim;
    team.each(rest < kPart ? rest : kPart, [&](std::int64_t i) {
      const std::int64_t slot = kv.slot(row, static_cast<std::int32_t>(begin + i)), to = ((begin + i) * kv.num_rows + row) * d;
      copy(kv.k, slot * d, k + to);
      copy(kv.v, slot * d, v + to);
    });
  }

 private:
  KVLAB_BODY void copy(const float* from, std::int64_t at, float* to) const {
    for (std::int32_t c = 0; c < kv.head_dim; ++c)
      to[c] = kv.type == ElementType::kF32   ? from[at + c]
              : kv.type == ElementType::kF16 ? to_float(reinterpret_cast<const f16*>(from)[at + c])
                                             : to_float(reinterpret_cast<const bf16*>(from)[at + c]);
  }
};
KVLAB_ROW_OP(GatherRows)

}  // namespace kvlab
