#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// Pruning by estimated attention mass: Twilight, Lin et al. 2025, arXiv:2502.02770.
namespace kvlab {

// Keys of tokens [from[r], len[r]) in few bits: each token's channels share zero = min and scale = (max - min) / (2^bits - 1), both
// fp16, and estimate = zero + scale * code. `estimate` holds what decoding gives.
struct EstimateKeys {
  KvRows kv;
  std::int32_t bits = 4;
  const std::int32_t* from = nullptr;  // [kv.num_rows]
  float* const* estimate = nullptr;    // [kv.num_rows] -> [len, head_dim]
};
// Bytes of one token's codes, zero and scale.
std::int64_t estimate_bytes(std::int32_t head_dim, std::int32_t bits);
// Keys are read, codes written; 4 operations per channel.
OpCall call(const EstimateKeys&);
void run_cpu(const EstimateKeys&);

// Per query head the fewest of a row's candidates whose estimated attention, the softmax over the candidates alone, sums up to at least
// `mass`; a row gets the union over its query heads and its last candidate. The earlier of candidates with equal weights is kept first.
struct TopMass {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, bits = 4;
  const Queries* queries = nullptr;         // [num_rows / kv_heads], the last one of each counts
  const float* const* estimate = nullptr;   // [num_rows] -> [tokens, head_dim]
  const std::int64_t* first = nullptr;      // [num_rows + 1] candidates
  bool lists_tokens = false;                // false: tokens 0, 1, ... of the row
  const std::int32_t* candidate = nullptr;  // [first[num_rows]] their tokens, ascending
  double mass = 0.85;
  std::int32_t* token = nullptr;  // [first[num_rows]] out: each row's list from first[r] on, ascending
  std::int32_t* count = nullptr;  // [num_rows] in: the number of candidates; out: the list's length
};
// Codes and candidates are read, counted as if all were written; 2 FLOPs per channel, head and candidate, and 8 per weight for the softmax
// and the search for the smallest weight.
OpCall call(const TopMass&);
void run_cpu(const TopMass&);

}  // namespace kvlab
