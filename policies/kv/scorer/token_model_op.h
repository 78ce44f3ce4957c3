#pragma once

#include <bit>
#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Scores of a step's new tokens by a trained model, kept as floats in a word of each row; a score depends on neither batch nor chunk.
// Tokens that a row no longer holds are left out. The input is the attention layer's h [hidden_dim], or x = [q; k; v] of all heads before
// RoPE:
//   kHidden  W1 h + b1 with W1 [kv_heads, hidden_dim] if mid_dim is 0, else W2 gelu(W1 h + b1) + b2 with W1 [mid_dim, hidden_dim] and
//            W2 [kv_heads, mid_dim]. KVzap, Jegou and Jeblick 2026, arXiv:2601.07891
//   kQkv     W2 silu(W1 x). Locret, Huang et al. 2024, arXiv:2410.01805. Rows must still hold the values of all new tokens
//   kGate    with r = mid_dim, per KV head and query head g of its group, norm(x) = x / sqrt(mean of x^2 + 1e-6),
//              q_g = norm(W1_g h + b1_g) * q_norm,  k = norm(W2 h) * k_norm,
//              mean over g of 1 / (1 + sum over sinks s of exp(k_base_s . q_g / sqrt r - k . q_g / sqrt r - b2_g)), in (0, 1),
//            W1 [kv_heads, group, r, hidden_dim], W2 [kv_heads, r, hidden_dim]. Fast KVzip, Kim et al. 2026, arXiv:2601.17668
struct TokenModel {
  enum class Kind : std::uint8_t { kHidden, kQkv, kGate };
  KvRows kv;
  Kind kind = Kind::kHidden;
  const std::int32_t* count = nullptr;     // [kv.num_sequences()] new tokens
  const std::int32_t* from_end = nullptr;  // [kv.num_sequences()] tokens of each row from its first new one on
  std::int32_t channel = 0;                // of the words
  std::int32_t hidden_dim = 0, mid_dim = 0, sinks = 0;
  const float* const* hidden = nullptr;  // [kv.num_sequences()], each [new tokens, hidden_dim]
  const Queries* queries = nullptr;      // [kv.num_sequences()] before RoPE, from position 0 on
  const float* const* keys = nullptr;    // [kv.num_sequences()] before RoPE, each [end, kv_heads, head_dim] by position
  const std::int32_t* begin = nullptr;   // [kv.num_sequences()] position of the first new token
  const float *w1 = nullptr, *b1 = nullptr, *w2 = nullptr, *b2 = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  // [mid_dim]
  const float* k_base = nullptr;                     // [kv_heads, sinks, mid_dim]

  // Weights (2 bytes) are read once per sequence with new tokens.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t heads = kv.kv_heads, q_heads = heads * kv.group, d = width(), mid = mid_dim, n = rows();
    std::int64_t weights = mid * (d + heads), products = weights, sequences = 0;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) sequences += count[s] > 0 ? 1 : 0;
    if (kind == Kind::kHidden) weights = mid == 0 ? heads * (d + 1) : mid * (d + 1) + heads * (mid + 1);
    if (kind == Kind::kHidden && mid == 0) products = heads * d;
    if (kind == Kind::kGate) {
      weights = q_heads * mid * (d + 1) + heads * mid * d + 2 * mid + heads * sinks * mid + q_heads;
      products = (q_heads + heads) * mid * d + q_heads * mid * (sinks + 1);
    }
    const bool is_qkv = kind == Kind::kQkv;
    return {.op = is_qkv                ? "qkv_scores"
                  : kind == Kind::kGate ? "gate_scores"
                                        : "hidden_scores",
            .rows = is_qkv ? sequences * heads : kv.num_rows,
            .tokens = n * heads,
            .outputs = n * heads,
            .bytes = n * (d * (is_qkv ? kv.kv_bytes : 4) + 4 * heads) + 2 * sequences * weights,
            .flops = 2 * n * products};
  }
  static constexpr bool kInParallel = true;
  // A team takes one token.
  [[nodiscard]] std::int64_t rows() const {
    std::int64_t n = 0;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) n += count[s];
    return n;
  }
  void shapes(auto&& visit) {
    const std::int64_t n = kv.num_sequences();
    visit(kv), visit(count, n), visit(from_end, n), visit(hidden, n), visit(queries, n), visit(keys, n), visit(begin, n);
  }
  // The first layer's numbers, then x of kQkv.
  [[nodiscard]] std::int64_t room(std::int64_t /*item*/) const { return middle() + (kind == Kind::kQkv ? width() : 0); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    Token t{0, static_cast<std::int32_t>(item)};
    while (t.index >= count[t.sequence]) t.index -= count[t.sequence++];
    float* const mid = team.room();
    const float* const x = kind == Kind::kQkv ? mid + middle() : hidden[t.sequence] + std::int64_t{t.index} * hidden_dim;
    if (kind == Kind::kQkv) gather(team, t, mid + middle());
    const std::int64_t lines = kind == Kind::kGate ? middle() - kv.kv_heads * mid_dim : middle();  // of w1
    team.each(middle(), [&](std::int64_t m) {
      const float z = m < lines ? linear(w1, b1, m, x, width()) : linear(w2, nullptr, m - lines, x, width());
      mid[m] = kind == Kind::kHidden ? gelu(z) : kind == Kind::kQkv ? z / (1.0F + std::exp(-z)) : z;
    });
    if (kind == Kind::kGate) normalize(team, mid);
    team.each(kv.kv_heads, [&](std::int64_t head) {
      const std::int32_t r = row(t, head), at = place(t, r);
      const float score = kind == Kind::kGate ? gate(head, mid)
                          : mid_dim == 0      ? linear(w1, b1, head, x, width())
                                              : linear(w2, b2, head, mid, mid_dim);
      if (at >= 0) kv.word(channel, r, at) = std::bit_cast<std::uint32_t>(score);
    });
  }

 private:
  struct Token {
    std::int32_t sequence, index;
  };
  [[nodiscard]] KVLAB_BODY std::int32_t row(Token t, std::int64_t head) const {
    return t.sequence * kv.kv_heads + static_cast<std::int32_t>(head);
  }
  [[nodiscard]] KVLAB_BODY std::int32_t place(Token t, std::int32_t row) const { return kv.len[row] - from_end[t.sequence] + t.index; }
  // Numbers of the input.
  [[nodiscard]] KVLAB_BOTH std::int64_t width() const {
    return kind == Kind::kQkv ? std::int64_t{kv.kv_heads} * (kv.group + 2) * kv.head_dim : hidden_dim;
  }
  // Numbers between the layers; kGate: of [kv_heads, group] queries, then of [kv_heads] keys.
  [[nodiscard]] KVLAB_BOTH std::int64_t middle() const {
    return kind == Kind::kGate ? std::int64_t{kv.kv_heads} * (kv.group + 1) * mid_dim : mid_dim;
  }

  [[nodiscard]] KVLAB_BODY float linear(const float* w, const float* b, std::int64_t line, const float* x, std::int64_t n) const {
    const auto product = [&](std::int64_t i) { return x[i] * w[line * n + i]; };
    const float sum = kind == Kind::kHidden ? sum_in_two_lanes(n, product) : sum_in_lanes(n, product);
    return sum + (b == nullptr ? 0.0F : b[line]);
  }
  template <class Team>
  KVLAB_BODY void gather(const Team& team, Token t, float* x) const {
    const std::int64_t d = kv.head_dim, kv_width = kv.kv_heads * d, q_width = kv_width * kv.group, position = begin[t.sequence] + t.index;
    team.each(q_width, [&](std::int64_t i) { x[i] = queries[t.sequence].data[position * q_width + i]; });
    team.each(kv_width, [&](std::int64_t i) {
      const std::int32_t r = row(t, i / d);
      x[q_width + i] = keys[t.sequence][position * kv_width + i];
      x[q_width + kv_width + i] = value_of(team, kv, r, place(t, r))[i % d];
    });
  }
  template <class Team>
  KVLAB_BODY void normalize(const Team& team, float* mid) const {
    const std::int64_t r = mid_dim, queries = std::int64_t{kv.kv_heads} * kv.group;
    team.each(queries + kv.kv_heads, [&](std::int64_t i) {
      float* const x = mid + i * r;
      const float scale = 1.0F / std::sqrt(dot_in_lanes(x, x, r) / static_cast<float>(r) + 1e-6F);
      for (std::int64_t c = 0; c < r; ++c) x[c] *= scale * (i < queries ? q_norm : k_norm)[c];
    });
  }
  [[nodiscard]] KVLAB_BODY float gate(std::int64_t head, const float* mid) const {
    const std::int64_t r = mid_dim, group = kv.group;
    const float* const k = mid + (kv.kv_heads * group + head) * r;
    const float scale = 1.0F / std::sqrt(static_cast<float>(r));
    float sum = 0;
    for (std::int64_t g = head * group; g < (head + 1) * group; ++g) {
      const float* const q = mid + g * r;
      const float own = dot_in_lanes(k, q, r) * scale + b2[g];
      float others = 0;
      for (std::int64_t s = 0; s < sinks; ++s) others += std::exp(dot_in_lanes(k_base + (head * sinks + s) * r, q, r) * scale - own);
      sum += 1.0F / (1.0F + others);
    }
    return sum / static_cast<float>(group);
  }
};
KVLAB_ROW_OP(TokenModel)

}  // namespace kvlab
