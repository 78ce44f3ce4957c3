#include "policies/kv/allocator/mass_count/mass_count.h"

namespace kvlab {

OpCall call(const MassCount& a) {
  const std::int64_t n = a.first[a.num_rows];
  return {.op = "mass_count", .rows = a.num_rows, .tokens = n, .outputs = a.num_rows, .bytes = 4 * n + 4 * a.num_rows, .flops = 2 * n};
}
KVLAB_WITHOUT_CUDA(MassCount)

void run_cpu(const MassCount& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    double total = 0;
    for (std::int64_t i = a.first[r]; i < a.first[r + 1]; ++i) total += a.scores[i];
    double sum = 0;
    std::int64_t i = a.first[r];
    while (i < a.first[r + 1]) {
      sum += a.scores[i++];
      if (sum >= a.mass_frac * total) break;
    }
    a.count[r] = static_cast<std::int32_t>(i - a.first[r]);
  }
}

}  // namespace kvlab
