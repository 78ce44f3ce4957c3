#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

struct QueryWeights {
  const float* w = nullptr;     // [q_heads * head_dim, hidden_dim]
  const float* bias = nullptr;  // [q_heads * head_dim]; null: none
  const float* norm = nullptr;  // [head_dim] of RMS norms; null: none
  float epsilon = 0;
};

// A layer's query from the previous layer's input h: RoPE(norm(W_q h + bias)), one token per sequence (InfiniGen, Lee et al. 2024, section
// 4.3). CPU only.
struct GuessQueries {
  std::int32_t num_sequences = 0, q_heads = 0, head_dim = 0, hidden_dim = 0;
  const float* const* hidden = nullptr;  // [num_sequences] -> [hidden_dim]
  QueryWeights weights;
  const float *cos = nullptr, *sin = nullptr;  // [num_sequences, head_dim / 2]; null: no RoPE
  float* out = nullptr;                        // [num_sequences, q_heads, head_dim]
};
OpCall call(const GuessQueries&);
void run_cpu(const GuessQueries&);

}  // namespace kvlab
