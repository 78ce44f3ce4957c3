#pragma once

#include <cmath>

#include "kernels/kv_rows.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// One token that replaces those not listed (SparQ, Ribar et al. 2024, arXiv:2312.04985, algorithm 1): its value is the mean of all values,
// its share for head h is 1 - alpha_h with alpha_h the sum of p_h over the listed tokens. Its key is 0, its logit for head h log sum exp of
// the listed tokens' logits + log((1 - alpha_h) / alpha_h).
struct SparqRest {
  KvRows kv;
  const Queries* queries = nullptr;
  UnitLists lists;                    // tokens
  const float* each = nullptr;        // of ChannelScores
  const float* const* sum = nullptr;  // of all values
  float *k = nullptr, *v = nullptr;   // [kv.num_rows, head_dim] out
  std::int32_t* position = nullptr;   // [kv.num_rows] out: 0, seen by every query
  float* log_weight = nullptr;        // [kv.num_rows * group] out

  // The mean values are written. Logits of the listed tokens are those of the attention that follows: not counted again.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.num_rows;
    return {.op = "sparq_rest", .rows = n, .outputs = n, .bytes = n * kv.head_dim * (4 + kv.kv_bytes), .flops = n * kv.head_dim};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return lists.size(row); }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_rows;
    visit(queries, kv.num_sequences()), visit_lists(lists, n, visit), visit(sum, n), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = kv.len[row], d = kv.head_dim, listed = lists.size(row);
    const std::int32_t* const token = lists.row(row);
    team.each(d, [&](std::int64_t c) {
      k[row * d + c] = 0.0F;
      v[row * d + c] = n == 0 ? 0.0F : sum[row][c] / static_cast<float>(n);
    });
    const float* const q = queries[row / kv.kv_heads].last(row % kv.kv_heads, kv.kv_heads, kv.group, kv.head_dim);
    for (std::int64_t h = 0; h < kv.group; ++h) {
      const float* const p = each + kv.group * kv.first[row] + h * n;
      const double alpha = team.template sum<double>(listed, [&](std::int64_t i) { return static_cast<double>(p[token[i]]); });
      const bool covers_all = listed == n || alpha >= 1;
      const float logit = covers_all ? -INFINITY : log_sum(team, row, q + h * d);
      team.once([&] {
        position[row] = 0;
        log_weight[row * kv.group + h] =
            covers_all ? -INFINITY : logit + static_cast<float>(std::log((1 - alpha) / (alpha < 1e-30 ? 1e-30 : alpha)));
      });
    }
  }

 private:
  // log sum exp of the listed tokens' logits.
  template <class Team>
  [[nodiscard]] KVLAB_BODY float log_sum(const Team& team, std::int64_t row, const float* q) const {
    const float scale = 1.0F / std::sqrt(static_cast<float>(kv.head_dim));
    const std::int64_t n = lists.size(row);
    const std::int32_t* const token = lists.row(row);
    float* const z = team.room();
    team.dots(
        n, kv.head_dim, q, [&](std::int64_t i) { return key_of(team, kv, row, token[i]); },
        [&](std::int64_t i, float x) { z[i] = scale * x; });
    const float top = largest(team, n, z);
    return top + std::log(exp_sum(team, n, top, z));
  }
};
KVLAB_ROW_OP(SparqRest)

}  // namespace kvlab
