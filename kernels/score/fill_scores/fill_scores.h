#pragma once

#include "kernels/ops.h"

namespace kvlab {

// Scores of tokens [begin[r], end[r]) of each row, or of its other tokens, become `value`, plus `slope` per such token before it.
struct FillScores {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;                  // [num_rows + 1]
  const std::int32_t *begin = nullptr, *end = nullptr;  // [num_rows]
  float value = 0.0F, slope = 0.0F;
  float* scores = nullptr;  // [first[num_rows]]
  bool outside = false;

  [[nodiscard]] std::int64_t count(std::int32_t r) const {
    const std::int64_t inside = end[r] - begin[r];
    return outside ? first[r + 1] - first[r] - inside : inside;
  }
};
OpCall call(const FillScores&);
void run_cpu(const FillScores&);
void run_cuda(const FillScores&, CudaContext&);

}  // namespace kvlab
