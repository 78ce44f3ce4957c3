#include "policies/kv/allocator/count_above/count_above.h"

#include <algorithm>

namespace kvlab {

// Scores are read once, a count per row is written.
OpCall call(const CountAbove& a) {
  const std::int64_t n = a.first[a.num_rows];
  return {.op = "count_above", .rows = a.num_rows, .tokens = n, .outputs = a.num_rows, .bytes = 4 * n + 4LL * a.num_rows, .flops = n};
}
KVLAB_WITHOUT_CUDA(CountAbove)

void run_cpu(const CountAbove& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r)
    a.count[r] = static_cast<std::int32_t>(
        std::count_if(a.scores + a.first[r], a.scores + a.first[r + 1], [&](float s) { return s >= a.threshold; }));
}

}  // namespace kvlab
