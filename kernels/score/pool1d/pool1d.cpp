#include "kernels/score/pool1d/pool1d.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"

namespace kvlab {

OpCall call(const Pool1d& a) {
  const std::int64_t n = a.first[a.num_rows];
  return {.op = "pool1d", .rows = a.num_rows, .tokens = n, .outputs = n, .bytes = 8 * n, .flops = n * a.width};
}
KVLAB_WITHOUT_CUDA(Pool1d)

void run_cpu(const Pool1d& a) {
  const std::int32_t half = a.width / 2;
  for_each_in_parallel(a.num_rows, [&](std::int64_t r) {
    float* scores = a.scores + a.first[r];
    const std::int32_t n = a.len[r];
    const std::vector<float> row(scores, scores + n);
    for (std::int32_t i = 0; i < n; ++i) {
      const auto begin = row.begin() + std::max(0, i - half), end = row.begin() + std::min(n, i + half + 1);
      if (a.kind == Pool1d::Kind::kMax) {
        scores[i] = *std::max_element(begin, end);
      } else {
        float sum = 0.0F;
        for (auto x = begin; x != end; ++x) sum += *x;
        scores[i] = sum / static_cast<float>(a.width);
      }
    }
  });
}

}  // namespace kvlab
