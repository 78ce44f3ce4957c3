#pragma once

#include "kernels/ops.h"

namespace kvlab {

// out[i] = (a_factor * a[i] + a_plus) op b[i], or without the second operand where uses_b is false. An infinite a[i] (a protected token) is
// copied unchanged; a divisor is taken as at least 1e-12. out may be a or b.
struct ScoreMap {
  enum class Kind : std::uint8_t { kPlus, kTimes, kOver };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  Kind kind = Kind::kPlus;
  const float* a = nullptr;  // [first[num_rows]]
  float a_factor = 1.0F, a_plus = 0.0F;
  bool uses_b = false;
  const float* b = nullptr;           // [first[num_rows]]
  const float* row_factor = nullptr;  // [num_rows], of b; null: 1. CPU memory
  float* out = nullptr;
};
OpCall call(const ScoreMap&);
void run_cpu(const ScoreMap&);
void run_cuda(const ScoreMap&, CudaContext&);

}  // namespace kvlab
