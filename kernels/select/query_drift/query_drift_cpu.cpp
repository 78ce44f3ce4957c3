#include <algorithm>
#include <cmath>

#include "kernels/dot_cpu.h"
#include "kernels/select/query_drift/query_drift.h"

namespace kvlab {

OpCall call(const QueryDrift& a) {
  OpCall c{.op = "query_drift", .rows = a.num_sequences, .outputs = a.num_sequences};
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    if (a.rule[s] == QueryDrift::kNever) continue;
    const bool compares = a.rule[s] == QueryDrift::kIfTurned;
    c.bytes += static_cast<std::int64_t>(a.width) * (compares ? 10 : 6);
    c.flops += compares ? 6LL * a.width : 0;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(QueryDrift)

void run_cpu(const QueryDrift& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    a.refresh[s] = a.rule[s] == QueryDrift::kAlways ? 1 : 0;
    if (a.rule[s] == QueryDrift::kNever) continue;
    const float* q = a.queries[s].data + static_cast<std::int64_t>(a.queries[s].count - 1) * a.width;
    float* reference = a.reference[s];
    if (a.rule[s] == QueryDrift::kIfTurned) {
      const float length = std::sqrt(lane_dot(q, q, a.width) * lane_dot(reference, reference, a.width));
      const float cosine = length > 0.0F ? lane_dot(q, reference, a.width) / length : 1.0F;
      a.refresh[s] = cosine < a.min_cosine ? 1 : 0;
    }
    if (a.refresh[s] == 1) std::copy_n(q, a.width, reference);
  }
}

}  // namespace kvlab
