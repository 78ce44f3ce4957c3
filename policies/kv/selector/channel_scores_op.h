#pragma once

#include <cmath>

#include "kernels/kv_rows.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Attention from few channels: the channels[r] channels of largest sum of |q| over the row's query heads (ties to the lower one), and with
// these only p_h[u] = softmax_u(q_h . x_u / sqrt(d * share of |q_h|_1 in these channels)) over the row's units u; then the mean over heads.
//   kKeys    units are tokens, x their keys. SparQ, Ribar et al. 2024, arXiv:2312.04985, algorithm 1
//   kBounds  units are pages, x in each channel the page's largest where the sum of the query heads is positive, else its smallest.
//            Stage 2 of RocketKV, Behnam et al. 2025, arXiv:2502.14051
struct ChannelScores {
  enum class Kind : std::uint8_t { kKeys, kBounds };
  KvRows kv;
  Kind kind = Kind::kKeys;
  const Queries* queries = nullptr;        // [kv.num_sequences()], the last one of each counts
  const std::int32_t* channels = nullptr;  // [kv.num_rows] 1 to head_dim
  const float* const* bounds = nullptr;    // [kv.num_rows] -> [pages, 2, head_dim], bounds of PageSummaries
  std::int32_t unit_tokens = 1;
  const std::int64_t* first = nullptr;  // [kv.num_rows + 1] tokens scored: whole units from the row's begin on
  float* each = nullptr;                // [group * first[num_rows]] out: head h of row r at group * first[r] + h * units; or null
  float* scores = nullptr;              // [first[num_rows]] out: the mean

  // These channels are read at the keys' precision, scores written; 2 FLOPs per channel, head and unit, 4 for the softmax.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = kind == Kind::kKeys ? "sparq_scores" : "signed_pages", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = first[r + 1] - first[r];
      c.tokens += n;
      c.outputs += n;
      c.bytes += units(r) * channels[r] * kv.kv_bytes + 4 * n;
      c.flops += units(r) * kv.group * (2LL * channels[r] + 4);
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  // A scale of each head; size, sum, mark and order of each channel; without `each` the weights.
  [[nodiscard]] std::int64_t room(std::int64_t row) const {
    return kv.group + 4LL * kv.head_dim + (each == nullptr ? kv.group * units(row) : 0);
  }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_rows;
    visit(queries, kv.num_sequences()), visit(channels, n), visit(bounds, n), visit(first, n + 1), visit(kv);
  }

  [[nodiscard]] KVLAB_BOTH std::int64_t units(std::int64_t row) const { return (first[row + 1] - first[row]) / unit_tokens; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = units(row), d = kv.head_dim, group = kv.group;
    if (n == 0) return;
    const float* const q = queries[row / kv.kv_heads].last(row % kv.kv_heads, kv.kv_heads, kv.group, kv.head_dim);
    float *const scale = team.room(), *const size = scale + group, *const sum = size + d;
    auto *const marked = reinterpret_cast<std::int32_t*>(sum + d), *const channel = marked + d;
    float* const p = each == nullptr ? sum + 3 * d : each + group * first[row];
    choose_channels(team, row, q, size, sum, marked, channel);
    team.each(group, [&](std::int64_t h) { scale[h] = scale_of(q + h * d, channel, channels[row]); });
    team.each(n, [&](std::int64_t u) {
      const auto key = kind == Kind::kKeys ? key_of(team, kv, row, u) : KvVector<Team>(bounds[row], ElementType::kF32, u * 2 * d);
      for (std::int64_t h = 0; h < group; ++h) {
        float z = 0.0F;
        for (std::int32_t j = 0; j < channels[row]; ++j) {
          const std::int32_t c = channel[j];
          z += q[h * d + c] * key[kind == Kind::kBounds && sum[c] > 0 ? c + d : c];
        }
        p[h * n + u] = z * scale[h];
      }
    });
    for (std::int64_t h = 0; h < group; ++h) {
      const float total = exp_sum(team, n, largest(team, n, p + h * n), p + h * n);
      team.each(n, [&](std::int64_t u) { p[h * n + u] /= total; });
    }
    team.each(n * unit_tokens, [&](std::int64_t i) {
      float mean = 0.0F;
      for (std::int64_t h = 0; h < group; ++h) mean += p[h * n + i / unit_tokens] / static_cast<float>(group);
      scores[first[row] + i] = mean;
    });
  }

 private:
  // Tokens take the chosen channels in ascending order, pages by size.
  template <class Team>
  KVLAB_BODY void choose_channels(const Team& team, std::int64_t row, const float* q, float* size, float* sum, std::int32_t* marked,
                                  std::int32_t* channel) const {
    const std::int32_t d = kv.head_dim;
    team.each(d, [&](std::int64_t c) {
      size[c] = sum[c] = 0.0F;
      for (std::int64_t h = 0; h < kv.group; ++h) size[c] += std::abs(q[h * d + c]), sum[c] += q[h * d + c];
    });
    if (kind == Kind::kBounds) return team.sort(d, channel, [&](std::int32_t x, std::int32_t y) { return size[x] > size[y]; });
    mark_best(
        team, d, channels[row], [&](std::int32_t c) { return size[c]; }, marked);
    team.pack(
        d, [&](std::int64_t c) { return marked[c] != 0; },
        [&](std::int64_t k, std::int64_t c) { channel[k] = static_cast<std::int32_t>(c); });
  }
  [[nodiscard]] KVLAB_BODY float scale_of(const float* q, const std::int32_t* channel, std::int32_t chosen) const {
    float part = 0.0F, whole = 0.0F;
    for (std::int32_t j = 0; j < chosen; ++j) part += std::abs(q[channel[j]]);
    for (std::int32_t c = 0; c < kv.head_dim; ++c) whole += std::abs(q[c]);
    const float share = whole > 0.0F ? part / whole : 1.0F, d = static_cast<float>(kv.head_dim);
    if (!((kind == Kind::kKeys ? part : share) > 0.0F)) return 0.0F;
    return 1.0F / std::sqrt(kind == Kind::kKeys ? d * part / whole : d * share);
  }
};
KVLAB_ROW_OP(ChannelScores)

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
