#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"
#include "kernels/model/linear/linear.h"

namespace kvlab {

// By cuBLASLt, sums in fp32. f32 is not tf32.
struct DeviceLinear {
  const void* x = nullptr;     // [tokens, in_dim]
  const void* w = nullptr;     // [out_dim, in_dim]
  void* y = nullptr;           // [tokens, out_dim]; overlaps neither x nor w
  const void* bias = nullptr;  // [out_dim]; may be null
  std::int64_t tokens = 0, in_dim = 0, out_dim = 0;
  ElementType type = ElementType::kBf16;
  bool y_is_f32 = false;  // without a bias: logits
};

constexpr LinearShape shape(const DeviceLinear& a) {
  return {a.tokens, a.out_dim, a.in_dim, element_bytes(a.type), 8.0 * static_cast<double>(element_bytes(a.type))};
}
void run_cuda(const DeviceLinear& a, CudaContext& cuda);

// y = x r per row. r_step 0: the same r.
struct DeviceProject {
  const void* x = nullptr;  // [tokens, dim] at b * x_step for row b
  const void* r = nullptr;  // [dim, rank] at b * r_step
  void* y = nullptr;        // [tokens, rank] at b * y_step
  std::int64_t rows = 0, tokens = 0, dim = 0, rank = 0;
  std::int64_t x_step = 0, r_step = 0, y_step = 0;
  ElementType type = ElementType::kBf16;
};

// For one row.
constexpr LinearShape shape(const DeviceProject& a) {
  return {a.tokens, a.rank, a.dim, element_bytes(a.type), 8.0 * static_cast<double>(element_bytes(a.type))};
}
void run_cuda(const DeviceProject& a, CudaContext& cuda);

}  // namespace kvlab
