#pragma once

#include <cmath>

#include "kernels/rows/key_estimate.h"
#include "kernels/rows/kv_vector.h"
#include "kernels/rows/lane_sum.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Products of a sequence's last query with its first tokens' keys, over all query heads h, without a softmax:
//   kMean       out[first[s] + i] = mean of q_h . k_i / sqrt(d); query heads are averaged per KV head before the product. PromptDistill,
//               Jin et al. 2025, arXiv:2503.23274
//   kRectified  out[first[s] + i] = sum of ReLU(q_h . k_i), k_i rotated estimates (EstimateKeys), q_h rounded in the same way. DeepSeek's
//               lightning indexer, 2025
struct HeadLogits {
  enum class Kind : std::uint8_t { kMean, kRectified };
  KvRows kv;                            // rows of a sequence hold the same tokens
  const Queries* queries = nullptr;     // [kv.num_sequences()], the last of each
  const std::int64_t* first = nullptr;  // [kv.num_sequences() + 1]
  float* out = nullptr;                 // [first[kv.num_sequences()]]
  Kind kind = Kind::kMean;
  const float* const* estimate = nullptr;  // [kv.num_rows] -> [tokens, head_dim] of kRectified

  [[nodiscard]] OpCall cost() const {
    const bool mean = kind == Kind::kMean;
    OpCall c{.op = mean ? "head_logits" : "index_scores", .rows = kv.num_rows};
    const std::int64_t d = kv.head_dim, heads = kv.kv_heads, group = kv.group;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      const std::int64_t n = first[s + 1] - first[s];
      c.tokens += heads * n;
      c.outputs += n;
      c.bytes += heads * n * (mean ? d * kv.kv_bytes : estimate_bytes(kv.head_dim, 8)) + 4 * n;
      c.bytes += mean || n > 0 ? heads * group * d * 2 : 0;
      c.flops += mean ? heads * d * (2 * n + group) : 2 * heads * group * n * (d + 1);
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_sequences(); }
  void shapes(auto&& visit) {
    const std::int64_t sequences = kv.num_sequences();
    visit(kv), visit(queries, sequences), visit(first, sequences + 1), visit(estimate, kv.num_rows);
  }
  static constexpr bool kInParallel = true;
  // The queries compared.
  [[nodiscard]] std::int64_t room(std::int64_t /*sequence*/) const { return std::int64_t{kv.kv_heads} * per_head() * kv.head_dim; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int64_t d = kv.head_dim, n = first[s + 1] - first[s];
    if (n == 0) return;
    float* const compared = team.room();
    prepare(team, queries[s].last(0, kv.kv_heads, kv.group, kv.head_dim), compared);
    team.each(n, [&](std::int64_t i) {
      float sum = 0;
      for (std::int64_t h = 0; h < kv.kv_heads; ++h) {
        const std::int64_t row = s * kv.kv_heads + h;
        const auto key = kind == Kind::kMean ? key_of(team, kv, row, i) : KvVector<Team>(estimate[row], ElementType::kF32, i * d);
        for (std::int64_t j = h * per_head(); j < (h + 1) * per_head(); ++j) {
          const float product = dot_in_lanes(compared + j * d, key, d);
          sum += kind == Kind::kMean || product > 0.0F ? product : 0.0F;
        }
      }
      out[first[s] + i] = sum;
    });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t per_head() const { return kind == Kind::kMean ? 1 : kv.group; }
  template <class Team>
  KVLAB_BODY void prepare(const Team& team, const float* q, float* compared) const {
    const std::int64_t d = kv.head_dim, group = kv.group;
    if (kind == Kind::kRectified)
      return team.each(kv.kv_heads * group, [&](std::int64_t j) { write_rotated(q + j * d, d, compared + j * d); });
    const float scale = 1.0F / (std::sqrt(static_cast<float>(d)) * static_cast<float>(group * kv.kv_heads));
    team.each(kv.kv_heads * d, [&](std::int64_t at) {
      float sum = 0;
      for (std::int64_t g = 0; g < group; ++g) sum += q[(at / d * group + g) * d + at % d];
      compared[at] = sum * scale;
    });
  }
};
KVLAB_ROW_OP(HeadLogits)

}  // namespace kvlab
