#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// 1 if a value exceeds the threshold, else 0 (NaN: 0).
struct Exceeds {
  std::int32_t num_values = 0;
  const float* values = nullptr;  // [num_values]
  float threshold = 0.0F;
  std::int32_t* flag = nullptr;  // [num_values] out
};
OpCall call(const Exceeds&);
void run_cpu(const Exceeds&);
void run_cuda(const Exceeds&, CudaContext&);  // `flag` is in CPU memory; waits for the stream.

}  // namespace kvlab
