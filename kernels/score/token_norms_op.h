#pragma once

#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// A norm of each cached key or value x, per KV head; or factor * x . vector, one vector per row; or with kProject the key in a basis,
// partial[r][i, j] = x_i . basis[r][j], for tokens [from[r], len[r]): InfiniGen, Lee et al. 2024.
struct TokenNorms {
  enum class Of : std::uint8_t { kKey, kValue };
  enum class Kind : std::uint8_t { kL1, kL2, kL2Squared, kDot, kProject };
  KvRows kv;
  Of of = Of::kKey;
  Kind kind = Kind::kL2;
  float* out = nullptr;            // [kv.total()]
  const float* vectors = nullptr;  // [kv.num_rows, head_dim] of kDot
  float factor = 1.0F;
  std::int32_t width = 0;              // lines of the basis
  bool copies_channels = false;        // the basis chooses channels: no products
  const std::int32_t* from = nullptr;  // [kv.num_rows]
  float* const* basis = nullptr;       // [kv.num_rows] -> [width, head_dim]
  float* const* partial = nullptr;     // [kv.num_rows] -> [len, width]

  [[nodiscard]] OpCall cost() const {
    if (kind == Kind::kProject) return cost_to_project();
    const std::int64_t n = kv.total();
    const bool is_dot = kind == Kind::kDot;
    return {.op = is_dot ? "key_dot" : "token_norms",
            .rows = kv.num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = n * (kv.head_dim * kv.kv_bytes + 4) + (is_dot ? 4 * kv.num_rows * kv.head_dim : 0),
            .flops = 2 * n * kv.head_dim};
  }
  [[nodiscard]] std::int64_t rows() const { return num_chunks(kv); }
  void shapes(auto&& visit) { visit(from, kv.num_rows), visit(basis, kv.num_rows), visit(partial, kv.num_rows), visit(kv); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const TokenChunk chunk = chunk_at(kv, item);
    if (kind == Kind::kProject) return project(team, chunk);
    float* const of_chunk = out + kv.first[chunk.row] + chunk.begin;
    const auto of_token = [&](std::int64_t i) {
      const std::int64_t token = chunk.begin + i;
      return of == Of::kKey ? key_of(team, kv, chunk.row, token) : value_of(team, kv, chunk.row, token);
    };
    if (kind == Kind::kDot)
      team.dots(chunk.count, kv.head_dim, vectors + std::int64_t{chunk.row} * kv.head_dim, of_token,
                [&](std::int64_t i, float x) { of_chunk[i] = factor * x; });
    else
      team.sums(
          chunk.count, kv.head_dim, of_token,
          [&](const auto& x, std::int64_t c) { return kind == Kind::kL1 ? std::abs(x[c]) : x[c] * x[c]; },
          [&](std::int64_t i, float x) { of_chunk[i] = kind == Kind::kL2 ? std::sqrt(x) : x; });
  }

 private:
  [[nodiscard]] OpCall cost_to_project() const {
    OpCall c{.op = "project_keys", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) c.tokens += kv.len[r] > from[r] ? kv.len[r] - from[r] : 0;
    c.outputs = c.tokens;
    c.bytes = c.tokens * ((copies_channels ? width : kv.head_dim) + width) * kv.kv_bytes;
    c.flops = copies_channels ? 0 : 2 * c.tokens * width * kv.head_dim;
    return c;
  }
  template <class Team>
  KVLAB_BODY void project(const Team& team, const TokenChunk& chunk) const {
    const std::int32_t r = chunk.row, begin = from[r] < chunk.begin ? chunk.begin : from[r], n = chunk.begin + chunk.count - begin;
    struct Pair {
      KvVector<Team> x;
      const float* line;
    };
    if (n > 0)
      team.sums(
          std::int64_t{n} * width, kv.head_dim,
          [&](std::int64_t i) {
            return Pair{key_of(team, kv, r, begin + i / width), basis[r] + i % width * kv.head_dim};
          },
          [](const Pair& p, std::int64_t c) { return p.x[c] * p.line[c]; },
          [&](std::int64_t i, float x) { partial[r][std::int64_t{begin} * width + i] = x; });
  }
};
KVLAB_ROW_OP(TokenNorms)

}  // namespace kvlab
