#pragma once

#include <bit>
#include <cmath>

#include "kernels/gelu.h"
#include "kernels/rows/kv_vector.h"
#include "kernels/rows/lane_sum.h"
#include "kernels/rows/row_op.h"

// Scores of a step's new tokens by trained models, kept as floats in a word of each row. A score depends on neither batch nor chunk.
namespace kvlab {

// A team takes one token. Tokens that a row no longer holds are left out.
struct NewTokens {
  KvRows kv;
  const std::int32_t* count = nullptr;
  const std::int32_t* from_end = nullptr;  // [kv.num_sequences()] tokens of each row from its first new one on
  std::int32_t channel = 0;                // of the words

  struct Token {
    std::int32_t sequence, index;
  };
  [[nodiscard]] KVLAB_BODY Token token(std::int64_t item) const {
    Token t{0, static_cast<std::int32_t>(item)};
    while (t.index >= count[t.sequence]) t.index -= count[t.sequence++];
    return t;
  }
  [[nodiscard]] KVLAB_BODY std::int32_t row(Token t, std::int64_t head) const {
    return t.sequence * kv.kv_heads + static_cast<std::int32_t>(head);
  }
  [[nodiscard]] KVLAB_BODY std::int32_t place(Token t, std::int32_t row) const { return kv.len[row] - from_end[t.sequence] + t.index; }
  KVLAB_BODY void keep(Token t, std::int64_t head, float score) const {
    const std::int32_t r = row(t, head), at = place(t, r);
    if (at >= 0) kv.word(channel, r, at) = std::bit_cast<std::uint32_t>(score);
  }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t n = 0;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) n += count[s];
    return n;
  }
  [[nodiscard]] std::int64_t sequences() const {
    std::int64_t n = 0;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) n += count[s] > 0 ? 1 : 0;
    return n;
  }
  void shapes(auto&& visit) {
    const std::int64_t n = kv.num_sequences();
    visit(kv), visit(count, n), visit(from_end, n);
  }
};

// A model of the attention layer's input h:
//   mid_dim == 0  W1 h + b1,                W1 [kv_heads, hidden_dim]
//   else          W2 gelu(W1 h + b1) + b2,  W1 [mid_dim, hidden_dim], W2 [kv_heads, mid_dim]
// KVzap, Jegou and Jeblick 2026, arXiv:2601.07891.
struct HiddenScores {
  NewTokens tokens;
  const float* const* hidden = nullptr;  // [num_sequences], each [new tokens, hidden_dim]
  std::int32_t hidden_dim = 0, mid_dim = 0;
  const float *w1 = nullptr, *b1 = nullptr, *w2 = nullptr, *b2 = nullptr;

  // Weights (2 bytes) are read once per sequence with new tokens.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t heads = tokens.kv.kv_heads, d = hidden_dim, mid = mid_dim, n = tokens.total();
    const std::int64_t weights = mid == 0 ? heads * (d + 1) : mid * (d + 1) + heads * (mid + 1);
    const std::int64_t products = mid == 0 ? heads * d : mid * d + heads * mid;
    return {.op = "hidden_scores",
            .rows = tokens.kv.num_rows,
            .tokens = n * heads,
            .outputs = n * heads,
            .bytes = 4 * n * (d + heads) + 2 * tokens.sequences() * weights,
            .flops = 2 * n * products};
  }
  [[nodiscard]] std::int64_t rows() const { return tokens.total(); }
  void shapes(auto&& visit) { visit(hidden, tokens.kv.num_sequences()), tokens.shapes(visit); }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t room(std::int64_t /*item*/) const { return mid_dim; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const NewTokens::Token t = tokens.token(item);
    const float* const h = hidden[t.sequence] + std::int64_t{t.index} * hidden_dim;
    float* const middle = team.room();
    team.each(mid_dim, [&](std::int64_t m) { middle[m] = gelu(linear(w1, b1, m, h, hidden_dim)); });
    team.each(tokens.kv.kv_heads, [&](std::int64_t head) {
      tokens.keep(t, head, mid_dim == 0 ? linear(w1, b1, head, h, hidden_dim) : linear(w2, b2, head, middle, mid_dim));
    });
  }

 private:
  static KVLAB_BODY float linear(const float* w, const float* b, std::int64_t line, const float* x, std::int64_t n) {
    return sum_in_two_lanes(n, [&](std::int64_t i) { return x[i] * w[line * n + i]; }) + b[line];
  }
};
KVLAB_ROW_OP(HiddenScores)

// A gate of the attention layer's input h. With r = rank, per KV head and query head g of its group
//   q_g = norm(Wq_g h + bq_g) * q_norm,  k = norm(Wk h) * k_norm,  norm(x) = x / sqrt(mean of x^2 + 1e-6),
//   score = mean over g of 1 / (1 + sum over sinks s of exp(k_base_s . q_g / sqrt r - k . q_g / sqrt r - b_g)), in (0, 1).
// Fast KVzip, Kim et al. 2026, arXiv:2601.17668.
struct GateScores {
  NewTokens tokens;
  const float* const* hidden = nullptr;  // [num_sequences], each [new tokens, hidden_dim]
  std::int32_t hidden_dim = 0, rank = 0, sinks = 0;
  const float *wq = nullptr, *bq = nullptr;          // [kv_heads, group, rank, hidden_dim], [kv_heads, group, rank]
  const float* wk = nullptr;                         // [kv_heads, rank, hidden_dim]
  const float *q_norm = nullptr, *k_norm = nullptr;  // [rank]
  const float* k_base = nullptr;                     // [kv_heads, sinks, rank]
  const float* b = nullptr;                          // [kv_heads, group]

  [[nodiscard]] OpCall cost() const {
    const std::int64_t heads = tokens.kv.kv_heads, q_heads = heads * tokens.kv.group, d = hidden_dim, r = rank, n = tokens.total();
    const std::int64_t weights = q_heads * r * (d + 1) + heads * r * d + 2 * r + heads * sinks * r + q_heads;
    const std::int64_t products = (q_heads + heads) * r * d + q_heads * r * (sinks + 1);
    return {.op = "gate_scores",
            .rows = tokens.kv.num_rows,
            .tokens = n * heads,
            .outputs = n * heads,
            .bytes = 4 * n * (d + heads) + 2 * tokens.sequences() * weights,
            .flops = 2 * n * products};
  }
  [[nodiscard]] std::int64_t rows() const { return tokens.total(); }
  void shapes(auto&& visit) { visit(hidden, tokens.kv.num_sequences()), tokens.shapes(visit); }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t room(std::int64_t /*item*/) const { return std::int64_t{tokens.kv.kv_heads} * (tokens.kv.group + 1) * rank; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const NewTokens::Token t = tokens.token(item);
    const float* const h = hidden[t.sequence] + std::int64_t{t.index} * hidden_dim;
    const std::int64_t r = rank, heads = tokens.kv.kv_heads, group = tokens.kv.group, queries = heads * group;
    float *const q = team.room(), *const k = q + queries * r;  // [queries, rank], [heads, rank]
    team.each((queries + heads) * r, [&](std::int64_t i) {
      const float* const w = i < queries * r ? wq + i * hidden_dim : wk + (i - queries * r) * hidden_dim;
      q[i] = dot_in_lanes(w, h, hidden_dim) + (i < queries * r ? bq[i] : 0.0F);
    });
    team.each(queries + heads, [&](std::int64_t i) {
      float* const x = q + i * r;
      const float scale = 1.0F / std::sqrt(dot_in_lanes(x, x, r) / static_cast<float>(r) + 1e-6F);
      for (std::int64_t c = 0; c < r; ++c) x[c] *= scale * (i < queries ? q_norm : k_norm)[c];
    });
    team.each(heads, [&](std::int64_t head) {
      float sum = 0;
      for (std::int64_t g = head * group; g < (head + 1) * group; ++g) sum += share(head, g, k + head * r, q + g * r);
      tokens.keep(t, head, sum / static_cast<float>(group));
    });
  }

 private:
  [[nodiscard]] KVLAB_BODY float share(std::int64_t head, std::int64_t g, const float* k, const float* q) const {
    const float scale = 1.0F / std::sqrt(static_cast<float>(rank)), own = dot_in_lanes(k, q, rank) * scale + b[g];
    float others = 0;
    for (std::int64_t s = 0; s < sinks; ++s) others += std::exp(dot_in_lanes(k_base + (head * sinks + s) * rank, q, rank) * scale - own);
    return 1.0F / (1.0F + others);
  }
};
KVLAB_ROW_OP(GateScores)

// A model of the token's query, key and value of all heads, before RoPE:
//   W2 silu(W1 [q; k; v]),  W1 [mid_dim, (q_heads + 2 kv_heads) * head_dim], W2 [kv_heads, mid_dim]
// Locret, Huang et al. 2024, arXiv:2410.01805. Rows must still hold the values of all new tokens.
struct QkvScores {
  NewTokens tokens;
  const Queries* queries = nullptr;     // [num_sequences] before RoPE, from position 0 on
  const float* const* keys = nullptr;   // [num_sequences] before RoPE, each [end, kv_heads, head_dim] by position
  const std::int32_t* begin = nullptr;  // [num_sequences] position of the first new token
  std::int32_t mid_dim = 0;
  const float *w1 = nullptr, *w2 = nullptr;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t heads = tokens.kv.kv_heads, n = tokens.total(), sequences = tokens.sequences(),
                       weights = mid_dim * (width() + heads);
    return {.op = "qkv_scores",
            .rows = sequences * heads,
            .tokens = n * heads,
            .outputs = n * heads,
            .bytes = n * (width() * tokens.kv.kv_bytes + 4 * heads) + 2 * sequences * weights,
            .flops = 2 * n * weights};
  }
  [[nodiscard]] std::int64_t rows() const { return tokens.total(); }
  void shapes(auto&& visit) {
    const std::int64_t n = tokens.kv.num_sequences();
    visit(queries, n), visit(keys, n), visit(begin, n), tokens.shapes(visit);
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t room(std::int64_t /*item*/) const { return width() + mid_dim; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const NewTokens::Token t = tokens.token(item);
    const std::int64_t d = tokens.kv.head_dim, kv_width = tokens.kv.kv_heads * d, q_width = kv_width * tokens.kv.group;
    const std::int64_t position = begin[t.sequence] + t.index, n = width();
    float *const x = team.room(), *const middle = x + n;
    team.each(q_width, [&](std::int64_t i) { x[i] = queries[t.sequence].data[position * q_width + i]; });
    team.each(kv_width, [&](std::int64_t i) {
      const std::int32_t row = tokens.row(t, i / d);
      x[q_width + i] = keys[t.sequence][position * kv_width + i];
      x[q_width + kv_width + i] = value_of(team, tokens.kv, row, tokens.place(t, row))[i % d];
    });
    team.each(mid_dim, [&](std::int64_t m) {
      const float z = dot_in_lanes(w1 + m * n, x, n);
      middle[m] = z / (1.0F + std::exp(-z));
    });
    team.each(tokens.kv.kv_heads, [&](std::int64_t head) { tokens.keep(t, head, dot_in_lanes(w2 + head * mid_dim, middle, mid_dim)); });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t width() const {
    return std::int64_t{tokens.kv.kv_heads} * (tokens.kv.group + 2) * tokens.kv.head_dim;
  }
};
KVLAB_ROW_OP(QkvScores)

}  // namespace kvlab
