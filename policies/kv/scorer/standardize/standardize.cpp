#include "policies/kv/scorer/standardize/standardize.h"

#include <cmath>

namespace kvlab {

// Three passes of reading, one of writing.
OpCall call(const Standardize& a) {
  const std::int32_t rows = a.num_pools * a.rows_per_pool;
  const std::int64_t n = rows == 0 ? 0 : a.first[rows];
  return {.op = "standardize", .rows = rows, .tokens = n, .outputs = n, .bytes = 16 * n, .flops = 6 * n};
}
KVLAB_WITHOUT_CUDA(Standardize)

void run_cpu(const Standardize& a) {
  for (std::int32_t p = 0; p < a.num_pools; ++p) {
    const std::int64_t begin = a.first[p * a.rows_per_pool], end = a.first[(p + 1) * a.rows_per_pool];
    double sum = 0, squares = 0;
    for (std::int64_t i = begin; i < end; ++i) sum += static_cast<double>(a.scores[i]);
    const double mean = end > begin ? sum / static_cast<double>(end - begin) : 0;
    for (std::int64_t i = begin; i < end; ++i)
      squares += (static_cast<double>(a.scores[i]) - mean) * (static_cast<double>(a.scores[i]) - mean);
    const double deviation = end - begin > 1 ? std::sqrt(squares / static_cast<double>(end - begin - 1)) : 0;
    for (std::int64_t i = begin; i < end; ++i)
      a.scores[i] = deviation > 0 ? static_cast<float>((static_cast<double>(a.scores[i]) - mean) / deviation) : 0.0F;
  }
}

}  // namespace kvlab
