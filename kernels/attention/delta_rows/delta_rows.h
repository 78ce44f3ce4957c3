#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Corrects sparse attention of a chunk by some dense rows. `out` holds sparse outputs S and is changed in place. The last tail() queries
// get dense outputs D. Among the others, every `stride`-th row r, from the chunk's first on, is computed densely, and the difference D[r] -
// S[r] is added to rows r .. r + stride - 1 in every query head. Delta Attention, Willette et al. 2025, arXiv:2505.11254.
struct DeltaRows {
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  const float* v = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  float* out = nullptr;      // [new_tokens, q_heads, head_dim]
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0F;
  std::int64_t window = 0;  // a query sees only its last `window` keys; 0: all
  std::int64_t stride = 64;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // of one element, in call()

  // Chosen so that a whole number of strides comes before it; a chunk no longer than that is computed densely.
  [[nodiscard]] std::int64_t tail() const { return std::min(new_tokens, new_tokens % stride + std::max<std::int64_t>(128, stride)); }
  [[nodiscard]] std::int64_t corrected() const { return new_tokens - tail(); }  // rows
  // Keys that the chunk's row i sees.
  [[nodiscard]] std::int64_t visible(std::int64_t i) const { return window == 0 ? kv_before + i + 1 : std::min(window, kv_before + i + 1); }
};
// Pairs of a dense row and a key that it sees.
std::int64_t dense_pairs(const DeltaRows&);
// 4 head_dim operations per query head and pair, and one addition per channel of a corrected row; K and V are read once per KV head.
OpCall call(const DeltaRows&);
void run_cpu(const DeltaRows&);

}  // namespace kvlab
