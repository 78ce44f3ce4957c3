#pragma once

#include <vector>

#include "kernels/device/cuda/memory.h"
#include "kernels/select/page_scores/unit_scores.h"

namespace kvlab {

// exp(z_u) / sum_w size_w exp(z_w) per head, reduced over heads. Device pointers. Heads of -infinity give 0.
struct SoftmaxRow {
  float* z = nullptr;                   // [group, n]
  float* out = nullptr;                 // [n], or [group, n] with kEach
  const std::int32_t* unit = nullptr;   // [n] null: 0, 1, ...
  const std::int32_t* sizes = nullptr;  // by unit; null: 1
  std::int32_t n = 0;
};
void soften_rows(const char* name, const std::vector<SoftmaxRow>& rows, std::int32_t group, UnitScores::Heads heads, CudaContext& cuda);

}  // namespace kvlab
