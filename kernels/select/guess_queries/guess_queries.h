#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// A layer's projection to queries.
struct QueryWeights {
  const float* w = nullptr;     // [q_heads * head_dim, hidden_dim]
  const float* bias = nullptr;  // [q_heads * head_dim]; null: none
  const float* norm = nullptr;  // [head_dim] of each head's RMS norm; null: none
  float epsilon = 0;            // of that norm
};

// A layer's query, guessed from the input h of the layer before: RoPE(norm(W_q h + bias)), one token per sequence (InfiniGen, Lee et al.
// 2024, section 4.3). On the CPU only: the host keeps h in CPU memory.
struct GuessQueries {
  std::int32_t num_sequences = 0, q_heads = 0, head_dim = 0, hidden_dim = 0;
  const float* const* hidden = nullptr;  // [num_sequences], each [hidden_dim]
  QueryWeights weights;
  const float *cos = nullptr, *sin = nullptr;  // [num_sequences, head_dim / 2]; null: no RoPE
  float* out = nullptr;                        // [num_sequences, q_heads, head_dim]
};
// W_q (2 bytes per element) is read once; per sequence a multiply and an add per element of W_q, and RoPE.
OpCall call(const GuessQueries&);
void run_cpu(const GuessQueries&);

}  // namespace kvlab
