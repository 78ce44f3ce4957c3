#include "policies/kv/selector/sum_rows/sum_rows.h"

#include <algorithm>

namespace kvlab {

OpCall call(const SumRows& a) {
  const std::int64_t n = a.num_rows == 0 ? 0 : a.first[a.num_rows];
  return {.op = "sum_rows", .rows = a.num_rows, .tokens = n, .outputs = n, .bytes = 8 * n, .flops = n};
}
KVLAB_WITHOUT_CUDA(SumRows)

void run_cpu(const SumRows& a) {
  for (std::int32_t row0 = 0; row0 < a.num_rows; row0 += a.rows_per_pool) {
    const auto units = [&](std::int32_t r) { return a.first[r + 1] - a.first[r]; };
    std::int64_t most = 0;
    for (std::int32_t r = row0; r < row0 + a.rows_per_pool; ++r) most = std::max(most, units(r));
    for (std::int64_t i = 0; i < most; ++i) {
      float sum = 0.0F;
      for (std::int32_t r = row0; r < row0 + a.rows_per_pool; ++r)
        if (i < units(r)) sum += a.scores[a.first[r] + i];
      for (std::int32_t r = row0; r < row0 + a.rows_per_pool; ++r)
        if (i < units(r)) a.scores[a.first[r] + i] = sum;
    }
  }
}

}  // namespace kvlab
