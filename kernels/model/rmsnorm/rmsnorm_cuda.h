#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"
#include "kernels/model/rmsnorm/rmsnorm.h"

namespace kvlab {

// Sums in fp32. The residual is rounded to `type` before it is normalised.
struct DeviceRmsNorm {
  const void* in = nullptr;      // [tokens, width]; vectorized if aligned to 16 bytes and width % 8 == 0
  void* residual = nullptr;      // [tokens, width]; may be null
  const void* weight = nullptr;  // [width]
  void* out = nullptr;           // [tokens, width]; may be `in`
  std::int64_t tokens = 0, width = 0;
  float epsilon = 1e-5F;
  ElementType type = ElementType::kBf16;
};

constexpr RmsNormShape shape(const DeviceRmsNorm& a) { return {a.tokens, a.width, element_bytes(a.type), a.residual != nullptr}; }
void run_cuda(const DeviceRmsNorm& a, CudaContext& cuda);

}  // namespace kvlab
