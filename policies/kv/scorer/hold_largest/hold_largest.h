#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Scores of the tokens with the largest keys become +infinity, so that they stay; ties go to the lower index. A row of n tokens that keeps
// B chooses its victims among the B - r tokens of smallest key, r = hold_tokens + floor(hold_frac * B): n - B + r are held. If fewer
// candidates than victims remain, r are held (at most B). None if n <= B.
struct HoldLargest {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const float* keys = nullptr;          // [first[num_rows]]
  const std::int32_t* keep = nullptr;   // [num_rows]
  std::int32_t hold_tokens = 0;
  double hold_frac = 0;
  float* scores = nullptr;  // [first[num_rows]]

  // Number of tokens held in a row of n tokens that keeps `budget`.
  [[nodiscard]] std::int32_t held(std::int32_t n, std::int32_t budget) const {
    const std::int32_t victims = n - budget;
    if (victims <= 0) return 0;
    const std::int32_t reserve = hold_tokens + static_cast<std::int32_t>(hold_frac * budget);
    return std::min(budget - reserve >= victims ? victims + reserve : reserve, budget);
  }
};
OpCall call(const HoldLargest&);
void run_cpu(const HoldLargest&);
void run_cuda(const HoldLargest&, CudaContext&);

}  // namespace kvlab
