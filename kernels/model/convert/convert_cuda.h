#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

// Rounds to nearest even. `out` may be `in` if element widths and strides are equal.
struct DeviceConvert {
  const void* in = nullptr;  // [rows, width]
  void* out = nullptr;       // [rows, width]
  std::int64_t rows = 0, width = 0;
  std::int64_t in_stride = 0, out_stride = 0;  // in elements; 0: width
  ElementType in_type = ElementType::kBf16, out_type = ElementType::kF32;
};

constexpr std::int64_t bytes(const DeviceConvert& a) { return a.rows * a.width * (element_bytes(a.in_type) + element_bytes(a.out_type)); }
void run_cuda(const DeviceConvert& a, CudaContext& cuda);

}  // namespace kvlab
