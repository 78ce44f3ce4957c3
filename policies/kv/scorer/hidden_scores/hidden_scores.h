#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// A score for the newest tokens of each row by a small model of the attention layer's input h, kept as a float in word `channel`:
//   mid_dim == 0  W1 h + b1,                W1 [kv_heads, hidden_dim]
//   else          W2 gelu(W1 h + b1) + b2,  W1 [mid_dim, hidden_dim], W2 [kv_heads, mid_dim]; gelu(x) = x (1 + erf(x / sqrt 2)) / 2
// KVzap, Jegou and Jeblick 2026, arXiv:2601.07891. A sequence's new tokens are scored if its rows still hold them; right after they were
// appended, all are.
struct HiddenScores {
  KvRows kv;
  const float* const* hidden = nullptr;      // [kv.num_sequences()], each [new_tokens, hidden_dim]
  const std::int32_t* new_tokens = nullptr;  // [kv.num_sequences()] the last ones of each row
  std::int32_t hidden_dim = 0, mid_dim = 0;
  const float *w1 = nullptr, *b1 = nullptr, *w2 = nullptr, *b2 = nullptr;
  std::int32_t channel = 0;
};
// Inputs are read once, weights (2 bytes per element) once per sequence with new tokens, a word is written per new token and row; a
// multiply and an add per weight and token.
OpCall call(const HiddenScores&);
void run_cpu(const HiddenScores&);

}  // namespace kvlab
