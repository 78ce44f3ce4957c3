#pragma once

#include <cstdint>

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

// Merges attention over parts of the tokens (Flash-Decoding, Dao et al. 2023; Hydragen, Juravsky et al. 2024): log_sum = log sum_p
// exp(log_sums[p]), out = sum_p exp(log_sums[p] - log_sum) parts[p]. Empty parts: log_sum -inf; no parts: zeros and -inf.
struct DeviceMergePartials {
  const float* parts = nullptr;     // [num_parts, rows, head_dim]
  const float* log_sums = nullptr;  // [num_parts, rows]
  void* out = nullptr;              // [rows, head_dim] of `type`
  float* log_sum = nullptr;         // [rows]; may be null
  std::int32_t num_parts = 0;
  std::int64_t rows = 0;
  std::int32_t head_dim = 0;  // a multiple of 4
  ElementType type = ElementType::kBf16;
};

constexpr std::int64_t bytes(const DeviceMergePartials& a) {
  return a.rows * (a.num_parts * (a.head_dim + 1LL) * 4 + a.head_dim * element_bytes(a.type) + (a.log_sum != nullptr ? 4 : 0));
}
constexpr std::int64_t flops(const DeviceMergePartials& a) { return 2 * a.rows * a.num_parts * a.head_dim; }
void run_cuda(const DeviceMergePartials& a, CudaContext& cuda);

}  // namespace kvlab
