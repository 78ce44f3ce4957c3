#pragma once

#include <cmath>

#include "kernels/rows/chunks.h"
#include "kernels/rows/kv_vector.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// A norm of every cached token's key or value, per KV head; or factor * x . vector, with one vector per row.
struct TokenNorms {
  enum class Of : std::uint8_t { kKey, kValue };
  enum class Kind : std::uint8_t { kL1, kL2, kL2Squared, kDot };
  KvRows kv;
  Of of = Of::kKey;
  Kind kind = Kind::kL2;
  float* out = nullptr;            // [kv.total()]
  const float* vectors = nullptr;  // [kv.num_rows, head_dim] of kDot
  float factor = 1.0F;

  // Keys or values are read once, of kDot a vector per row, and a float per token is written; one multiply-add per channel.
  [[nodiscard]] OpCall cost() const {
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
  void shapes(auto&& visit) { visit(kv); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const TokenChunk chunk = chunk_at(kv, item);
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
};
KVLAB_ROW_OP(TokenNorms)

}  // namespace kvlab
