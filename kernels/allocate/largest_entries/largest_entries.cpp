#include "kernels/allocate/largest_entries/largest_entries.h"

#include <algorithm>

namespace kvlab {

OpCall call(const LargestEntries& a) {
  const std::int32_t rows = a.num_pools * a.members;
  const std::int64_t n = a.first[rows];
  return {.op = "largest_entries", .rows = rows, .tokens = n, .outputs = n / a.members, .bytes = 4 * n + 4 * n / a.members, .flops = n};
}

void run_cpu(const LargestEntries& a) {
  for (std::int32_t r = 0; r < a.num_pools * a.members; ++r) {
    if (r % a.members == 0) continue;
    const std::int64_t n = a.first[r + 1] - a.first[r];
    float* largest = a.rows[r - r % a.members];
    for (std::int64_t i = 0; i < n; ++i) largest[i] = std::max(largest[i], a.rows[r][i]);
  }
}

}  // namespace kvlab
