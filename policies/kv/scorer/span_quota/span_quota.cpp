#include "policies/kv/scorer/span_quota/span_quota.h"

#include <algorithm>
#include <vector>

namespace kvlab {

// A selection per span: scores and positions are read once, marked scores written.
OpCall call(const SpanQuota& a) {
  const std::int64_t n = a.kv.total();
  std::int64_t marked = 0;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    for (std::int64_t j = a.quota_first[r]; j < a.quota_first[r + 1]; ++j) marked += a.quota[j];
  return {.op = "span_quota", .rows = a.kv.num_rows, .tokens = n, .outputs = marked, .bytes = 8 * n + 4 * marked, .flops = 2 * n};
}
KVLAB_WITHOUT_CUDA(SpanQuota)

void run_cpu(const SpanQuota& a) {
  std::vector<std::int32_t> order;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t span0 = a.first[a.kv.sequence(r)], spans = a.first[a.kv.sequence(r) + 1] - span0;
    float* scores = a.scores + a.kv.first[r];
    for (std::int64_t j = 0, at = 0; j < spans; ++j) {
      const std::int32_t end = j + 1 < spans ? a.begin[span0 + j + 1] : std::numeric_limits<std::int32_t>::max();
      order.clear();
      for (; at < a.kv.len[r] && a.kv.position[a.kv.slot(r, static_cast<std::int32_t>(at))] < end; ++at)
        order.push_back(static_cast<std::int32_t>(at));
      const auto cut = order.begin() + std::min<std::int64_t>(a.quota[a.quota_first[r] + j], static_cast<std::int64_t>(order.size()));
      std::nth_element(order.begin(), cut, order.end(),
                       [scores](std::int32_t x, std::int32_t y) { return scores[x] != scores[y] ? scores[x] > scores[y] : x < y; });
      for (auto i = order.begin(); i != cut; ++i) scores[*i] = std::max(scores[*i], a.value);
    }
  }
}

}  // namespace kvlab
