#include "kernels/score/fill_scores/fill_scores.h"

namespace kvlab {

OpCall call(const FillScores& a) {
  std::int64_t n = 0;
  for (std::int32_t r = 0; r < a.num_rows; ++r) n += a.end[r] - a.begin[r];
  return {.op = "fill_scores", .rows = a.num_rows, .outputs = n, .bytes = 4 * n};
}
KVLAB_WITHOUT_CUDA(FillScores)

void run_cpu(const FillScores& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r)
    for (std::int32_t i = a.begin[r]; i < a.end[r]; ++i) a.scores[a.first[r] + i] = a.value + a.slope * static_cast<float>(i - a.begin[r]);
}

}  // namespace kvlab
