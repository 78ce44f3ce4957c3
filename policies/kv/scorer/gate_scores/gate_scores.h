#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// A score in (0, 1) for the newest tokens of each row by a trained gate of the attention layer's input h, kept as a float in word
// `channel`. With r = rank, per KV head and query head g of its group
//   q_g = norm(Wq_g h + bq_g) * q_norm,  k = norm(Wk h) * k_norm,  norm(x) = x / sqrt(mean of x^2 + 1e-6),
//   score = mean over g of 1 / (1 + sum over sinks s of exp(k_base_s . q_g / sqrt r - k . q_g / sqrt r - b_g)).
// Fast KVzip, Kim et al. 2026, arXiv:2601.17668. New tokens count as in HiddenScores.
struct GateScores {
  KvRows kv;
  const float* const* hidden = nullptr;      // [kv.num_sequences()], each [new_tokens, hidden_dim]
  const std::int32_t* new_tokens = nullptr;  // [kv.num_sequences()] the last ones of each row
  std::int32_t hidden_dim = 0, rank = 0, sinks = 0;
  const float *wq = nullptr, *bq = nullptr;          // [kv_heads, group, rank, hidden_dim], [kv_heads, group, rank]
  const float* wk = nullptr;                         // [kv_heads, rank, hidden_dim]
  const float *q_norm = nullptr, *k_norm = nullptr;  // [rank]
  const float* k_base = nullptr;                     // [kv_heads, sinks, rank]
  const float* b = nullptr;                          // [kv_heads, group]
  std::int32_t channel = 0;
};
// Inputs are read once, weights (2 bytes per element) once per sequence with new tokens, a word is written per new token and row; a
// multiply and an add per weight of the projections and per value of the sinks and query head.
OpCall call(const GateScores&);
void run_cpu(const GateScores&);

}  // namespace kvlab
