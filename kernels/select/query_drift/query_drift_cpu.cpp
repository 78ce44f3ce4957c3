#include <algorithm>
#include <cmath>

#include "kernels/dot_cpu.h"
#include "kernels/select/query_drift/query_drift.h"

namespace kvlab {

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
