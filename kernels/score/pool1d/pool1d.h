#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Smooths each row's scores over `width` (odd) tokens, stride 1, in place. The average divides by `width` also at the ends, the maximum
// ignores the padding.
struct Pool1d {
  enum class Kind : std::uint8_t { kAvg, kMax };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const std::int32_t* len = nullptr;    // [num_rows] leading tokens; the others keep their scores
  float* scores = nullptr;
  std::int32_t width = 1;
  Kind kind = Kind::kAvg;
};
OpCall call(const Pool1d&);
void run_cpu(const Pool1d&);
void run_cuda(const Pool1d&, CudaContext&);

}  // namespace kvlab
