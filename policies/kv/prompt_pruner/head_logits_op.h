#pragma once

#include <cmath>

#include "kernels/rows/kv_vector.h"
#include "kernels/rows/lane_sum.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// out[first[s] + i] = mean over query heads h of q_h . k_i / sqrt(d), for a sequence's last query, without a softmax. Query heads are
// averaged per KV head before the product. PromptDistill, Jin et al. 2025, arXiv:2503.23274.
struct HeadLogits {
  KvRows kv;                            // rows of a sequence hold the same tokens
  const Queries* queries = nullptr;     // [kv.num_sequences()], the last of each
  const std::int64_t* first = nullptr;  // [kv.num_sequences() + 1]
  float* out = nullptr;                 // [first[kv.num_sequences()]]

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "head_logits", .rows = kv.num_rows};
    const std::int64_t d = kv.head_dim, heads = kv.kv_heads, group = kv.group;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      const std::int64_t n = first[s + 1] - first[s];
      c.tokens += heads * n;
      c.outputs += n;
      c.bytes += heads * (n * d * kv.kv_bytes + group * d * 2) + 4 * n;
      c.flops += heads * d * (2 * n + group);
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_sequences(); }
  void shapes(auto&& visit) {
    const std::int64_t sequences = kv.num_sequences();
    visit(kv), visit(queries, sequences), visit(first, sequences + 1);
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t room(std::int64_t /*sequence*/) const { return std::int64_t{kv.kv_heads} * kv.head_dim; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int64_t d = kv.head_dim, group = kv.group;
    const float* const q = queries[s].data + (queries[s].count - 1LL) * kv.kv_heads * group * d;
    const float scale = 1.0F / (std::sqrt(static_cast<float>(d)) * static_cast<float>(group * kv.kv_heads));
    float* const mean = team.room();
    team.each(kv.kv_heads * d, [&](std::int64_t at) {
      float sum = 0;
      for (std::int64_t g = 0; g < group; ++g) sum += q[(at / d * group + g) * d + at % d];
      mean[at] = sum * scale;
    });
    team.each(first[s + 1] - first[s], [&](std::int64_t i) {
      float sum = 0;
      for (std::int64_t h = 0; h < kv.kv_heads; ++h) sum += dot_in_lanes(mean + h * d, key_of(team, kv, s * kv.kv_heads + h, i), d);
      out[first[s] + i] = sum;
    });
  }
};
KVLAB_ROW_OP(HeadLogits)

}  // namespace kvlab
