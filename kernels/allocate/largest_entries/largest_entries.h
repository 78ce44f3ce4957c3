#pragma once

#include "kernels/ops.h"

namespace kvlab {

// Rows of equal length in pools of `members`: the first row of each becomes the largest of the pool's, entry by entry. On the CPU alone.
struct LargestEntries {
  std::int32_t num_pools = 0, members = 1;
  const std::int64_t* first = nullptr;  // [num_pools * members + 1]
  float* const* rows = nullptr;         // [num_pools * members]
};
OpCall call(const LargestEntries&);
void run_cpu(const LargestEntries&);

}  // namespace kvlab
