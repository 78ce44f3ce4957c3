#include "policies/kv/disposal/merge_gate/merge_gate.h"

#include <algorithm>

namespace kvlab {

namespace {

// The threshold for the rows [begin, end) of one sequence, brought up to date.
float threshold_of(const MergeGate& a, std::int32_t begin, std::int32_t end) {
  if (!a.running) return a.fixed;
  double sum = 0;
  std::int64_t count = 0;
  for (std::int32_t r = begin; r < end; ++r) {
    for (std::int64_t i = a.rows.dropped_first[r]; i < a.rows.dropped_first[r + 1]; ++i) {
      if (a.target[i] < 0) continue;
      sum += static_cast<double>(a.similarity[i]);
      ++count;
    }
  }
  float& threshold = a.thresholds[a.threshold_of[a.rows.kv.sequence(begin)]];
  if (count == 0) return threshold;
  const auto mean = static_cast<float>(sum / static_cast<double>(count));
  threshold = threshold < -1.0F ? mean : (1.0F - a.share) * threshold + a.share * mean;
  return threshold;
}

// Mean similarity of the j-th dropped tokens of the rows.
float mean_of(const MergeGate& a, std::int32_t begin, std::int32_t end, std::int32_t j) {
  double sum = 0;
  std::int32_t count = 0;
  for (std::int32_t r = begin; r < end; ++r) {
    if (j >= a.rows.num_dropped(r) || a.target[a.rows.dropped_first[r] + j] < 0) continue;
    sum += static_cast<double>(a.similarity[a.rows.dropped_first[r] + j]);
    ++count;
  }
  return count == 0 ? 0.0F : static_cast<float>(sum / count);
}

}  // namespace

OpCall call(const MergeGate& a) {
  const std::int64_t n = a.rows.total_dropped();
  return {.op = "merge_gate",
          .rows = a.rows.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = 12 * n + (a.running ? 8LL * a.rows.kv.num_sequences() : 0),
          .flops = 4 * n};
}
KVLAB_WITHOUT_CUDA(MergeGate)

void run_cpu(const MergeGate& a) {
  const std::int32_t heads = a.rows.kv.kv_heads;
  for (std::int32_t begin = 0; begin < a.rows.kv.num_rows; begin += heads) {
    const float threshold = threshold_of(a, begin, begin + heads);
    std::int32_t most = 0;
    for (std::int32_t r = begin; r < begin + heads; ++r) most = std::max(most, a.rows.num_dropped(r));
    for (std::int32_t j = 0; j < most; ++j) {
      const float together = a.head_mean ? mean_of(a, begin, begin + heads, j) : 0.0F;
      for (std::int32_t r = begin; r < begin + heads; ++r) {
        if (j >= a.rows.num_dropped(r)) continue;
        const std::int64_t i = a.rows.dropped_first[r] + j;
        if (!((a.head_mean ? together : a.similarity[i]) >= threshold)) a.target[i] = -1;
      }
    }
  }
}

}  // namespace kvlab
