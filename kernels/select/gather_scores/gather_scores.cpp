#include "kernels/select/gather_scores/gather_scores.h"

namespace kvlab {

OpCall call(const GatherScores& a) {
  const std::int64_t kept = a.index_first[a.num_rows];
  return {.op = "gather_scores", .rows = a.num_rows, .tokens = kept, .outputs = kept, .bytes = 12 * kept};
}
KVLAB_WITHOUT_CUDA(GatherScores)

void run_cpu(const GatherScores& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r)
    for (std::int64_t j = a.index_first[r]; j < a.index_first[r + 1]; ++j) a.out[j] = a.scores[a.first[r] + a.index[j]];
}

}  // namespace kvlab
