#pragma once

#include <cmath>

#include "kernels/rows/kv_vector.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Votes of all query heads of a sequence for its candidates, the n_s = first[s + 1] - first[s] tokens of its rows from begin[s] on:
//   out[first[s] + i] = sum over KV heads r and query heads h of r's group of softmax_i(q_h . k_r[begin[s] + i] / sqrt(d)),
// the softmax over the candidates only. Soft voting of TokenSelect, Wu et al. 2024, arXiv:2411.02886, section 4.2.
struct HeadVotes {
  KvRows kv;
  const Queries* queries = nullptr;     // [kv.num_sequences()], the last one of each counts; a sequence without query has no candidates
  const std::int32_t* begin = nullptr;  // [kv.num_sequences()]
  const std::int64_t* first = nullptr;  // [kv.num_sequences() + 1]
  float* out = nullptr;                 // [first[kv.num_sequences()]]

  // Candidates' keys are read once per KV head at their precision, votes written; products, and the softmax as one more multiply-add.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "head_votes", .rows = kv.num_rows};
    const std::int64_t d = kv.head_dim, heads = kv.kv_heads, group = kv.group;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      const std::int64_t n = first[s + 1] - first[s];
      if (n == 0) continue;
      c.tokens += heads * n;
      c.outputs += n;
      c.bytes += heads * (n * d * kv.kv_bytes + group * d * 2) + 4 * n;
      c.flops += 2 * heads * group * n * (d + 1);
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return kv.num_sequences(); }
  // A KV head's votes and a query head's weights.
  [[nodiscard]] std::int64_t room(std::int64_t s) const { return 2 * (first[s + 1] - first[s]); }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_sequences();
    visit(queries, n), visit(begin, n), visit(first, n + 1), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int64_t n = first[s + 1] - first[s], d = kv.head_dim;
    if (n == 0) return;
    const float scale = 1.0F / std::sqrt(static_cast<float>(d));
    float *const votes = team.room(), *const z = votes + n, *const sums = out + first[s];
    team.each(n, [&](std::int64_t i) { sums[i] = 0.0F; });
    for (std::int64_t head = 0; head < kv.kv_heads; ++head) {
      const float* const q = queries[s].last(head, kv.kv_heads, kv.group, kv.head_dim);
      team.each(n, [&](std::int64_t i) { votes[i] = 0.0F; });
      for (std::int64_t h = 0; h < kv.group; ++h) {
        team.dots(
            n, d, q + h * d, [&](std::int64_t i) { return key_of(team, kv, s * kv.kv_heads + head, begin[s] + i); },
            [&](std::int64_t i, float x) { z[i] = scale * x; });
        const float sum = exp_sum(team, n, largest(team, n, z), z);
        team.each(n, [&](std::int64_t i) { votes[i] += z[i] / sum; });
      }
      team.each(n, [&](std::int64_t i) { sums[i] += votes[i]; });
    }
  }
};
KVLAB_ROW_OP(HeadVotes)

}  // namespace kvlab
