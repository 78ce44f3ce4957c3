#pragma once

#include "kernels/ops.h"

namespace kvlab {

// Scores of parts of rows go to their places in the rows: scores[to[i] + j] = part[from[i] + j] for j < from[i + 1] - from[i]. On the CPU
// alone.
struct PartScores {
  std::int32_t num_parts = 0;
  const std::int64_t *from = nullptr, *to = nullptr;  // [num_parts + 1], [num_parts]
  const float* part = nullptr;                        // [from[num_parts]]
  float* scores = nullptr;
};
OpCall call(const PartScores&);
void run_cpu(const PartScores&);

}  // namespace kvlab
