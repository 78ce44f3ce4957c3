#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/element.h"
#include "kernels/ops.h"

namespace kvlab {

// Corrects a chunk's sparse outputs S in `out`: the last tail() queries get dense outputs D; of the others every `stride`-th row r is
// computed densely, and D[r] - S[r] is added to rows r .. r + stride - 1. Delta Attention, Willette et al. 2025, arXiv:2505.11254.
struct DeltaRows {
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  const float* v = nullptr;  // as k
  float* out = nullptr;      // as q
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0F;
  std::int64_t window = 0;  // visible keys; 0: all
  std::int64_t stride = 64;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // per element, in call()

  // A whole number of strides comes before it.
  [[nodiscard]] KVLAB_BOTH std::int64_t tail() const {
    return std::min(new_tokens, new_tokens % stride + std::max<std::int64_t>(128, stride));
  }
  [[nodiscard]] KVLAB_BOTH std::int64_t corrected() const { return new_tokens - tail(); }
  [[nodiscard]] KVLAB_BOTH std::int64_t visible(std::int64_t i) const {
    return window == 0 ? kv_before + i + 1 : std::min(window, kv_before + i + 1);
  }
};
std::int64_t dense_pairs(const DeltaRows&);
OpCall call(const DeltaRows&);
void run_cpu(const DeltaRows&);
void run_cuda(const DeltaRows&, CudaContext&);  // head_dim <= 256

}  // namespace kvlab
