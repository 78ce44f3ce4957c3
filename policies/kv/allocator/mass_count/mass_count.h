#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Number of leading entries of each descending row that hold the share `mass_frac` of the row's sum (at least 1, 0 for an empty row).
struct MassCount {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const float* scores = nullptr;        // [first[num_rows]] descending, none negative
  double mass_frac = 1.0;
  std::int32_t* count = nullptr;  // [num_rows] out
};
OpCall call(const MassCount&);
void run_cpu(const MassCount&);
void run_cuda(const MassCount&, CudaContext&);  // counts are in CPU memory: waits for the stream

}  // namespace kvlab
