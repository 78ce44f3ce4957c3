#pragma once

#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/key_estimate.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Scores of a sequence's n_s = first[s + 1] - first[s] candidates, its rows' tokens from begin[s] on, by all heads of its last query; k_i
// is candidate i's key in the head's row:
//   kVotes      out[first[s] + i] = sum over query heads h of softmax_i(q_h . k_i / sqrt(d)) over the candidates. Soft voting of
//               TokenSelect, Wu et al. 2024, arXiv:2411.02886, section 4.2
//   kLogits     mean over query heads h of q_h . k_i / sqrt(d), averaged per KV head before the product. PromptDistill, Jin et al. 2025,
//               arXiv:2503.23274
//   kRectified  sum over query heads h of ReLU(q_h . k_i), k_i rotated estimates (EstimateKeys), q_h rounded alike. DeepSeek's lightning
//               indexer, 2025
struct HeadScores {
  enum class Kind : std::uint8_t { kVotes, kLogits, kRectified };
  KvRows kv;
  const Queries* queries = nullptr;     // [kv.num_sequences()], the last one of each; without query no candidates
  const std::int64_t* first = nullptr;  // [kv.num_sequences() + 1]
  float* out = nullptr;                 // [first[kv.num_sequences()]]
  Kind kind = Kind::kVotes;
  const std::int32_t* begin = nullptr;     // [kv.num_sequences()], null: 0
  const float* const* estimate = nullptr;  // [kv.num_rows] -> [tokens, head_dim] of kRectified

  // Keys are read once per KV head.
  [[nodiscard]] OpCall cost() const {
    const bool logits = kind == Kind::kLogits;
    OpCall c{.op = logits ? "head_logits" : kind == Kind::kVotes ? "head_votes" : "index_scores", .rows = kv.num_rows};
    const std::int64_t d = kv.head_dim, heads = kv.kv_heads, group = kv.group;
    const std::int64_t key_bytes = kind == Kind::kRectified ? estimate_bytes(kv.head_dim, 8) : d * kv.kv_bytes;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      const std::int64_t n = first[s + 1] - first[s];
      if (n == 0 && !logits) continue;
      c.tokens += heads * n;
      c.outputs += n;
      c.bytes += heads * (n * key_bytes + group * d * 2) + 4 * n;
      c.flops += heads * (logits ? d * (2 * n + group) : 2 * group * n * (d + 1));
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return kv.num_sequences(); }
  [[nodiscard]] std::int64_t room(std::int64_t s) const { return 2 * (first[s + 1] - first[s]) + per_head() * kv.head_dim; }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_sequences();
    visit(queries, n), visit(begin, n), visit(first, n + 1), visit(estimate, kv.num_rows), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int64_t n = first[s + 1] - first[s], from = begin == nullptr ? 0 : begin[s], d = kv.head_dim;
    if (n == 0) return;
    const bool votes = kind == Kind::kVotes;
    const float scale = votes ? 1.0F / std::sqrt(static_cast<float>(d)) : 1.0F;
    float *const sums = out + first[s], *const of_head = votes ? team.room() : sums, *const z = team.room() + n, *const room = z + n;
    team.each(n, [&](std::int64_t i) { sums[i] = 0.0F; });
    for (std::int64_t head = 0; head < kv.kv_heads; ++head) {
      const std::int64_t row = s * kv.kv_heads + head;
      const float* const q = compared(team, queries[s].last(head, kv.kv_heads, kv.group, kv.head_dim), room);
      if (votes) team.each(n, [&](std::int64_t i) { of_head[i] = 0.0F; });
      for (std::int64_t h = 0; h < per_head(); ++h) {
        team.dots(
            n, d, q + h * d, [&](std::int64_t i) { return key(team, row, from + i); }, [&](std::int64_t i, float x) { z[i] = scale * x; });
        const float sum = votes ? exp_sum(team, n, largest(team, n, z), z) : 1.0F;
        team.each(n, [&](std::int64_t i) { of_head[i] += kind == Kind::kRectified && !(z[i] > 0.0F) ? 0.0F : z[i] / sum; });
      }
      if (votes) team.each(n, [&](std::int64_t i) { sums[i] += of_head[i]; });
    }
  }

 private:
  // Vectors per KV head for each key.
  [[nodiscard]] KVLAB_BOTH std::int64_t per_head() const { return kind == Kind::kLogits ? 1 : kv.group; }
  template <class Team>
  [[nodiscard]] KVLAB_BODY KvVector<Team> key(const Team& team, std::int64_t row, std::int64_t i) const {
    if (kind == Kind::kRectified) return {estimate[row], ElementType::kF32, i * kv.head_dim};
    return key_of(team, kv, row, i);
  }
  // q, its scaled mean, or its rotated estimates.
  template <class Team>
  [[nodiscard]] KVLAB_BODY const float* compared(const Team& team, const float* q, float* to) const {
    const std::int64_t d = kv.head_dim, group = kv.group;
    if (kind == Kind::kVotes) return q;
    if (kind == Kind::kRectified) {
      team.each(group, [&](std::int64_t h) { write_rotated(q + h * d, d, to + h * d); });
      return to;
    }
    const float scale = 1.0F / (std::sqrt(static_cast<float>(d)) * static_cast<float>(group * kv.kv_heads));
    team.each(d, [&](std::int64_t c) {
      float sum = 0.0F;
      for (std::int64_t h = 0; h < group; ++h) sum += q[h * d + c];
      to[c] = sum * scale;
    });
    return to;
  }
};
KVLAB_ROW_OP(HeadScores)

}  // namespace kvlab
