#include "kernels/score/fill_scores/fill_scores.h"

namespace kvlab {

OpCall call(const FillScores& a) {
  std::int64_t n = 0;
  for (std::int32_t r = 0; r < a.num_rows; ++r) n += a.count(r);
  return {.op = "fill_scores", .rows = a.num_rows, .outputs = n, .bytes = 4 * n};
}
KVLAB_WITHOUT_CUDA(FillScores)

void run_cpu(const FillScores& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t head = a.outside ? a.begin[r] : 0, tail = a.outside ? a.end[r] - head : a.begin[r], n = a.count(r);
    for (std::int64_t i = 0; i < n; ++i) a.scores[a.first[r] + (i < head ? i : tail + i)] = a.value + a.slope * static_cast<float>(i);
  }
}

}  // namespace kvlab
