#pragma once

#include <cmath>

#include "kernels/rows/kv_vector.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"
#include "kernels/select/unit_lists.h"

// Attention from few channels first, then from few tokens: SparQ, Ribar et al. 2024, arXiv:2312.04985, algorithm 1; in a storage device:
// InstInfer, Pan et al. 2024, arXiv:2409.04992.
namespace kvlab {

// The `channels` channels of largest sum_h |q_h| over the row's query heads (ties to the lower one), and with these only
// p_h[i] = softmax_i(q_h . k_i / sqrt(d |q_h on the channels|_1 / |q_h|_1)) over all tokens of the row; mean over the heads.
struct SparqScores {
  KvRows kv;
  std::int32_t channels = 1;         // <= head_dim
  const Queries* queries = nullptr;  // [kv.num_sequences()], the last one of each counts
  float* each = nullptr;             // [kv.group * kv.total()] out: row r, head h from group * first[r] + h * len[r] on
  float* scores = nullptr;           // [kv.total()] out: the mean

  // These channels of all keys are read at the keys' precision, scores written; 2 FLOPs per channel, head and token, 4 for the softmax.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    return {.op = "sparq_scores",
            .rows = kv.num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = n * (channels * kv.kv_bytes + 4),
            .flops = n * kv.group * (2LL * channels + 4)};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  // Size and mark of each channel, the chosen ones, a scale of each head.
  [[nodiscard]] std::int64_t room(std::int64_t /*row*/) const { return 2LL * kv.head_dim + channels + kv.group; }
  void shapes(auto&& visit) { visit(queries, kv.num_sequences()), visit(kv); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = kv.len[row], d = kv.head_dim;
    if (n == 0) return;
    const float* const q = queries[row / kv.kv_heads].last(row % kv.kv_heads, kv.kv_heads, kv.group, kv.head_dim);
    float *const scale = team.room(), *const p = each + kv.group * kv.first[row], *const mean = scores + kv.first[row];
    auto* const channel = reinterpret_cast<std::int32_t*>(scale + kv.group);
    choose_channels(team, q, channel);
    team.each(kv.group, [&](std::int64_t h) { scale[h] = scale_of(q + h * d, channel); });
    team.each(n, [&](std::int64_t i) {
      const auto key = key_of(team, kv, row, i);
      for (std::int64_t h = 0; h < kv.group; ++h) {
        float z = 0.0F;
        for (std::int32_t j = 0; j < channels; ++j) z += q[h * d + channel[j]] * key[channel[j]];
        p[h * n + i] = z * scale[h];
      }
    });
    for (std::int64_t h = 0; h < kv.group; ++h) {
      const float sum = exp_sum(team, n, largest(team, n, p + h * n), p + h * n);
      team.each(n, [&](std::int64_t i) { p[h * n + i] /= sum; });
    }
    team.each(n, [&](std::int64_t i) {
      float sum = 0.0F;
      for (std::int64_t h = 0; h < kv.group; ++h) sum += p[h * n + i] / static_cast<float>(kv.group);
      mean[i] = sum;
    });
  }

 private:
  template <class Team>
  KVLAB_BODY void choose_channels(const Team& team, const float* q, std::int32_t* channel) const {
    const std::int32_t d = kv.head_dim;
    auto* const size = reinterpret_cast<float*>(channel + channels);
    auto* const marked = reinterpret_cast<std::int32_t*>(size + d);
    team.each(d, [&](std::int64_t c) {
      float sum = 0.0F;
      for (std::int64_t h = 0; h < kv.group; ++h) sum += std::abs(q[h * d + c]);
      size[c] = sum;
    });
    mark_best(
        team, d, channels, [&](std::int32_t c) { return size[c]; }, marked);
    team.pack(
        d, [&](std::int64_t c) { return marked[c] != 0; },
        [&](std::int64_t k, std::int64_t c) { channel[k] = static_cast<std::int32_t>(c); });
  }
  [[nodiscard]] KVLAB_BODY float scale_of(const float* q, const std::int32_t* channel) const {
    float part = 0.0F, whole = 0.0F;
    for (std::int32_t j = 0; j < channels; ++j) part += std::abs(q[channel[j]]);
    for (std::int32_t c = 0; c < kv.head_dim; ++c) whole += std::abs(q[c]);
    return part > 0.0F ? 1.0F / std::sqrt(static_cast<float>(kv.head_dim) * part / whole) : 0.0F;
  }
};
KVLAB_ROW_OP(SparqScores)

// Sum of the values of each row: adds tokens [from[r], len[r]); from[r] = 0 begins with 0.
struct ValueSums {
  KvRows kv;
  const std::int32_t* from = nullptr;  // [kv.num_rows]
  float* const* sum = nullptr;         // [kv.num_rows] -> [head_dim]

  // New values are read, sums read and written in fp32.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "value_sums", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = kv.len[r] - from[r];
      if (n <= 0) continue;
      c.tokens += n;
      c.outputs += 1;
      c.bytes += (n * kv.kv_bytes + 8) * kv.head_dim;
      c.flops += n * kv.head_dim;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) { visit(from, kv.num_rows), visit(sum, kv.num_rows), visit(kv); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    constexpr std::int32_t kBlock = 64;  // tokens that stay in a core's cache
    float* const to = sum[row];
    if (from[row] == 0) team.each(kv.head_dim, [&](std::int64_t c) { to[c] = 0.0F; });
    for (std::int32_t begin = from[row]; begin < kv.len[row]; begin += kBlock) {
      const std::int32_t end = kv.len[row] - begin < kBlock ? kv.len[row] : begin + kBlock;
      team.each(kv.head_dim, [&](std::int64_t c) {
        for (std::int32_t i = begin; i < end; ++i) to[c] += value_of(team, kv, row, i)[c];
      });
    }
  }
};
KVLAB_ROW_OP(ValueSums)

// One token that replaces those not listed: its value is the mean of all values, its share for head h is 1 - alpha_h with alpha_h the sum
// of p_h over the listed tokens. Its key is 0, its logit for head h log sum exp of the listed tokens' logits + log((1 - alpha_h) /
// alpha_h).
struct SparqRest {
  KvRows kv;
  const Queries* queries = nullptr;
  UnitLists lists;                    // tokens
  const float* each = nullptr;        // of SparqScores
  const float* const* sum = nullptr;  // of ValueSums
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
    visit(queries, kv.num_sequences()), visit(lists.first, n + 1), visit(lists.rows, n), visit(lists.count, n), visit(sum, n), visit(kv);
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

// Distinct flash pages that hold the listed tokens, each page `page_tokens` neighbouring tokens.
struct FlashPages {
  std::int32_t num_rows = 0, page_tokens = 1;
  UnitLists lists;
  std::int32_t* count = nullptr;  // [num_rows] in: upper bounds, out; CPU memory

  // A diagnostic: it costs nothing.
  [[nodiscard]] OpCall cost() const { return {.op = "flash_pages", .rows = num_rows}; }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit(lists.first, num_rows + 1), visit(lists.rows, num_rows), visit(lists.count, num_rows); }
  void results(auto&& visit) { visit(count, num_rows); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int32_t* const token = lists.row(row);
    const std::int32_t pages = team.template sum<std::int32_t>(lists.size(row), [&](std::int64_t i) {
      const std::int32_t before = i == 0 ? -1 : token[i - 1] / page_tokens;
      return token[i] / page_tokens != before ? 1 : 0;
    });
    team.once([&] { count[row] = pages; });
  }
};
KVLAB_ROW_OP(FlashPages)

}  // namespace kvlab
