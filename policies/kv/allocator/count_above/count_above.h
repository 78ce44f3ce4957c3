#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Counts the scores of each row that are at least `threshold`; NaN is not.
struct CountAbove {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const float* scores = nullptr;        // [first[num_rows]]
  float threshold = 0.0F;
  std::int32_t* count = nullptr;  // [num_rows] out
};
OpCall call(const CountAbove&);
void run_cpu(const CountAbove&);
void run_cuda(const CountAbove&, CudaContext&);  // counts are in CPU memory: waits for the stream

}  // namespace kvlab
