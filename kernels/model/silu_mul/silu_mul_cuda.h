#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"
#include "kernels/model/silu_mul/silu_mul.h"

namespace kvlab {

// In fp32. One array [tokens, 2 * width]: up = gate + width, in_stride = 2 * width.
struct DeviceSiluMul {
  const void* gate = nullptr;  // [tokens, width]
  const void* up = nullptr;    // [tokens, width]; null: out = silu(gate)
  void* out = nullptr;         // [tokens, width], dense; may be a dense `gate` or `up`
  std::int64_t tokens = 0, width = 0;
  std::int64_t in_stride = 0;  // in elements; 0: width
  ElementType type = ElementType::kBf16;
};

constexpr SiluMulShape shape(const DeviceSiluMul& a) { return {a.tokens, a.width, element_bytes(a.type), a.up != nullptr}; }
void run_cuda(const DeviceSiluMul& a, CudaContext& cuda);

}  // namespace kvlab
