#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// A score for new tokens of each row by a small model of all heads' query, key and value of the token, before RoPE:
//   W2 silu(W1 [q; k; v]),  W1 [mid_dim, (q_heads + 2 kv_heads) * head_dim], W2 [kv_heads, mid_dim], silu(x) = x / (1 + exp(-x)),
// kept as a float in word `channel`. Locret, Huang et al. 2024, arXiv:2410.01805. Values are read from the rows, which still hold all new
// tokens.
struct QkvScores {
  KvRows kv;
  const Queries* queries = nullptr;          // [kv.num_sequences()] before RoPE, from position 0 on
  const float* const* keys = nullptr;        // [kv.num_sequences()] before RoPE, each [end, kv_heads, head_dim] by position
  const std::int32_t* begin = nullptr;       // [kv.num_sequences()] position of the first new token
  const std::int32_t* new_tokens = nullptr;  // [kv.num_sequences()] that are scored
  const std::int32_t* appended = nullptr;    // [kv.num_sequences()] last tokens of each row, of which the first new_tokens are scored
  std::int32_t mid_dim = 0;
  const float *w1 = nullptr, *w2 = nullptr;
  std::int32_t channel = 0;
};
// Queries, keys and values are read once in the cache's type, weights (2 bytes per element) once per sequence with new tokens, a word is
// written per new token and row; a multiply and an add per weight and token.
OpCall call(const QkvScores&);
void run_cpu(const QkvScores&);

}  // namespace kvlab
