#include "kernels/allocate/span_mass/span_mass.h"

#include <algorithm>

namespace kvlab {

OpCall call(const SpanMass& a) {
  std::int64_t tokens = 0;
  for (std::int32_t r = 0; r < a.num_pools * a.rows_per_pool; ++r)
    tokens += a.head_end[r] + std::max(0, a.tail_end[r] - std::max(a.tail_begin[r], a.head_end[r]));
  return {.op = "span_mass",
          .rows = a.num_pools * a.rows_per_pool,
          .tokens = tokens,
          .outputs = a.num_pools,
          .bytes = 4 * tokens + 4 * a.num_pools,
          .flops = tokens};
}
KVLAB_WITHOUT_CUDA(SpanMass)

void run_cpu(const SpanMass& a) {
  for (std::int32_t p = 0; p < a.num_pools; ++p) {
    double sum = 0;
    for (std::int32_t r = p * a.rows_per_pool; r < (p + 1) * a.rows_per_pool; ++r) {
      const float* scores = a.scores + a.first[r];
      for (std::int32_t i = 0; i < a.head_end[r]; ++i) sum += scores[i];
      for (std::int32_t i = std::max(a.tail_begin[r], a.head_end[r]); i < a.tail_end[r]; ++i) sum += scores[i];
    }
    a.mass[p] = static_cast<float>(sum * static_cast<double>(a.factor) / a.rows_per_pool);
  }
}

}  // namespace kvlab
