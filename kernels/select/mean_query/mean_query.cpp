#include "kernels/select/mean_query/mean_query.h"

#include <algorithm>

namespace kvlab {

OpCall call(const MeanQuery& a) {
  OpCall c{.op = "mean_query", .rows = a.num_sequences};
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const std::int64_t n = a.queries[s].count;
    if (n == 0) continue;
    c.outputs += 1;
    c.bytes += 2 * (n + 1) * a.width;
    c.flops += n * a.width;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(MeanQuery)

void run_cpu(const MeanQuery& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const Queries& q = a.queries[s];
    float* mean = a.mean + static_cast<std::int64_t>(s) * a.width;
    std::fill_n(mean, a.width, 0.0F);
    for (std::int64_t t = 0; t < q.count; ++t)
      for (std::int64_t i = 0; i < a.width; ++i) mean[i] += q.data[t * a.width + i] / static_cast<float>(q.count);
  }
}

OpCall call(const SentenceQuery& a) {
  const std::int64_t n = a.num_sequences, values = n * a.width;
  return {.op = "sentence_query", .rows = n, .outputs = n, .bytes = 12 * values, .flops = 2 * values};
}
KVLAB_WITHOUT_CUDA(SentenceQuery)

void run_cpu(const SentenceQuery& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const Queries& q = a.queries[s];
    float *sum = a.sums[s], *mean = a.mean + static_cast<std::int64_t>(s) * a.width;
    const std::int32_t at = q.first_position + q.count - 1;
    const bool begins = a.fresh[s] == 1 || at == 0 || a.sentence_of[s][at] != a.sentence_of[s][at - 1];
    if (begins) std::fill_n(sum, a.width + 1, 0.0F);
    sum[a.width] += 1.0F;
    for (std::int64_t i = 0; i < a.width; ++i) {
      sum[i] += q.data[static_cast<std::int64_t>(q.count - 1) * a.width + i];
      mean[i] = sum[i] / sum[a.width];
    }
  }
}

}  // namespace kvlab
