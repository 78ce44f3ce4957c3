#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/rows/kv_vector.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// DeepSeek's lightning indexer (DeepSeek-V3.2-Exp, 2025) without its trained projections: a vector x [d] after a normalised Hadamard
// rotation in blocks of the largest power of two that divides d, in e4m3 with one scale, the smallest power of two that brings the largest
// number to <= 448.
struct IndexCode {
  std::int64_t d;
  [[nodiscard]] KVLAB_BOTH std::int64_t bytes() const { return d + 4; }

  // By one thread; `x` [d] is scratch memory.
  template <class Vector>
  KVLAB_BODY void write(const Vector& from, float* x, std::uint8_t* code) const {
    const std::int64_t block = d & ~(d - 1);
    for (std::int64_t c = 0; c < d; ++c) x[c] = from[c];
    for (std::int64_t half = 1; half < block; half *= 2)
      for (std::int64_t i = 0; i < d; ++i)
        if ((i & half) == 0) {
          const float a = x[i], b = x[i + half];
          x[i] = a + b, x[i + half] = a - b;
        }
    const float rotation = 1.0F / std::sqrt(static_cast<float>(block));
    float largest = 0.0F;
    for (std::int64_t c = 0; c < d; ++c) {
      x[c] *= rotation;
      largest = std::abs(x[c]) > largest ? std::abs(x[c]) : largest;
    }
    const float scale = largest > 0.0F ? std::exp2(std::ceil(std::log2(largest / 448.0F))) : 1.0F;
    for (std::int64_t c = 0; c < d; ++c) code[c] = from_float<fp8>(x[c] / scale).bits;
    std::memcpy(code + d, &scale, 4);
  }
  KVLAB_BODY void read(const std::uint8_t* code, float* x) const {
    float scale = 0.0F;
    std::memcpy(&scale, code + d, 4);
    for (std::int64_t c = 0; c < d; ++c) x[c] = scale * to_float(fp8{code[c]});
  }
};

// Tokens from from[row] on.
struct IndexKeys {
  KvRows kv;
  const std::int32_t* from = nullptr;   // [kv.num_rows] CPU memory
  std::uint8_t* const* code = nullptr;  // [kv.num_rows] each [len, IndexCode::bytes]

  [[nodiscard]] OpCall cost() const {
    const std::int64_t d = kv.head_dim;
    std::int64_t n = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) n += tokens(r);
    return {.op = "index_keys",
            .rows = kv.num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = n * (d * kv.kv_bytes + IndexCode{d}.bytes()),
            .flops = n * d * std::countr_zero(static_cast<std::uint64_t>(d))};
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return tokens(row) * kv.head_dim; }
  void shapes(auto&& visit) { visit(from, kv.num_rows), visit(code, kv.num_rows), visit(kv); }

  [[nodiscard]] KVLAB_BOTH std::int64_t tokens(std::int64_t row) const { return kv.len[row] - from[row]; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const IndexCode index{kv.head_dim};
    team.each(tokens(row), [&](std::int64_t i) {
      const std::int64_t token = from[row] + i;
      index.write(key_of(team, kv, row, token), team.room() + i * index.d, code[row] + token * index.bytes());
    });
  }
};
KVLAB_ROW_OP(IndexKeys)

// out[first[s] + i] = sum over query heads j of ReLU(q_j . k_i), q_j and the key of j's KV head as coded, for the first[s + 1] - first[s]
// tokens of sequence s: all of its rows' or none.
struct IndexScores {
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()], the last of each
  const std::uint8_t* const* code = nullptr;
  const std::int64_t* first = nullptr;  // [kv.num_sequences() + 1] CPU memory
  float* out = nullptr;

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "index_scores", .rows = kv.num_rows};
    const std::int64_t d = kv.head_dim, heads = kv.kv_heads;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      const std::int64_t n = first[s + 1] - first[s];
      c.tokens += heads * n;
      c.outputs += n;
      c.bytes += heads * n * IndexCode{d}.bytes() + 4 * n + (n > 0 ? heads * kv.group * d * 2 : 0);
      c.flops += 2 * heads * kv.group * n * (d + 1);
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_sequences(); }
  [[nodiscard]] std::int64_t room(std::int64_t sequence) const {
    return (kv.group + 2 + first[sequence + 1] - first[sequence]) * kv.head_dim;
  }
  void shapes(auto&& visit) {
    visit(queries, kv.num_sequences()), visit(code, kv.num_rows), visit(first, kv.num_sequences() + 1), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int64_t n = first[s + 1] - first[s], d = kv.head_dim, group = kv.group;
    if (n == 0) return;
    const IndexCode index{d};
    float *const q = team.room(), *const keys = q + (group + 2) * d;
    auto* const scratch = reinterpret_cast<std::uint8_t*>(q + group * d);
    team.each(n, [&](std::int64_t i) { out[first[s] + i] = 0.0F; });
    for (std::int64_t h = 0; h < kv.kv_heads; ++h) {
      const float* const from = queries[s].last(h, kv.kv_heads, kv.group, kv.head_dim);
      team.once([&] {
        for (std::int64_t j = 0; j < group; ++j) index.write(from + j * d, q + j * d, scratch), index.read(scratch, q + j * d);
      });
      team.each(n, [&](std::int64_t i) {
        float* const key = keys + i * d;
        index.read(code[s * kv.kv_heads + h] + i * index.bytes(), key);
        for (std::int64_t j = 0; j < group; ++j) {
          const float product = team.dot(q + j * d, key, d);
          out[first[s] + i] += product > 0.0F ? product : 0.0F;
        }
      });
    }
  }
};
KVLAB_ROW_OP(IndexScores)

}  // namespace kvlab
