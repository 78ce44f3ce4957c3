#pragma once

#include <cmath>

#include "kernels/rows/kv_vector.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Scores of a sequence's n_s = first[s + 1] - first[s] candidates, the tokens of its rows from begin[s] on, by all heads of its last query;
// k_i is the key of candidate i in the head's row:
//   kVotes   out[first[s] + i] = sum over query heads h of softmax_i(q_h . k_i / sqrt(d)), the softmax over the candidates only. Soft
//   voting
//            of TokenSelect, Wu et al. 2024, arXiv:2411.02886, section 4.2
//   kLogits  mean over query heads h of q_h . k_i / sqrt(d); averaged per KV head before the product. PromptDistill, Jin et al. 2025,
//            arXiv:2503.23274
struct HeadScores {
  enum class Kind : std::uint8_t { kVotes, kLogits };
  KvRows kv;
  const Queries* queries = nullptr;     // [kv.num_sequences()], the last one of each; a sequence without query has no candidates
  const std::int64_t* first = nullptr;  // [kv.num_sequences() + 1]
  float* out = nullptr;                 // [first[kv.num_sequences()]]
  Kind kind = Kind::kVotes;
  const std::int32_t* begin = nullptr;  // [kv.num_sequences()], null: 0

  // Candidates' keys are read once per KV head at their precision, scores written; products, and the softmax as one more multiply-add.
  [[nodiscard]] OpCall cost() const {
    const bool votes = kind == Kind::kVotes;
    OpCall c{.op = votes ? "head_votes" : "head_logits", .rows = kv.num_rows};
    const std::int64_t d = kv.head_dim, heads = kv.kv_heads, group = kv.group;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      const std::int64_t n = first[s + 1] - first[s];
      if (n == 0 && votes) continue;
      c.tokens += heads * n;
      c.outputs += n;
      c.bytes += heads * (n * d * kv.kv_bytes + group * d * 2) + 4 * n;
      c.flops += heads * (votes ? 2 * group * n * (d + 1) : d * (2 * n + group));
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return kv.num_sequences(); }
  // A KV head's scores, a query head's weights, a mean query.
  [[nodiscard]] std::int64_t room(std::int64_t s) const { return 2 * (first[s + 1] - first[s]) + kv.head_dim; }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_sequences();
    visit(queries, n), visit(begin, n), visit(first, n + 1), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int64_t n = first[s + 1] - first[s], from = begin == nullptr ? 0 : begin[s], d = kv.head_dim, group = kv.group;
    if (n == 0) return;
    const bool votes = kind == Kind::kVotes;
    const float root = std::sqrt(static_cast<float>(d)), scale = votes ? 1.0F / root : 1.0F;
    const float mean_scale = 1.0F / (root * static_cast<float>(group * kv.kv_heads));
    float *const of_head = team.room(), *const z = of_head + n, *const mean = z + n, *const sums = out + first[s];
    team.each(n, [&](std::int64_t i) { sums[i] = 0.0F; });
    for (std::int64_t head = 0; head < kv.kv_heads; ++head) {
      const float* const q = queries[s].last(head, kv.kv_heads, kv.group, kv.head_dim);
      team.each(n, [&](std::int64_t i) { of_head[i] = 0.0F; });
      if (!votes) {
        team.each(d, [&](std::int64_t c) {
          float sum = 0.0F;
          for (std::int64_t h = 0; h < group; ++h) sum += q[h * d + c];
          mean[c] = sum * mean_scale;
        });
      }
      for (std::int64_t h = 0; h < (votes ? group : 1); ++h) {
        team.dots(
            n, d, votes ? q + h * d : mean, [&](std::int64_t i) { return key_of(team, kv, s * kv.kv_heads + head, from + i); },
            [&](std::int64_t i, float x) { z[i] = scale * x; });
        const float sum = votes ? exp_sum(team, n, largest(team, n, z), z) : 1.0F;
        team.each(n, [&](std::int64_t i) { of_head[i] += z[i] / sum; });
      }
      team.each(n, [&](std::int64_t i) { sums[i] += of_head[i]; });
    }
  }
};
KVLAB_ROW_OP(HeadScores)

}  // namespace kvlab
