#include "policies/kv/selector/tier_reuse/tier_reuse.h"

#include <algorithm>

namespace kvlab {

OpCall call(const TierReuse& a) { return {.op = "tier_reuse", .rows = a.num_rows}; }
KVLAB_WITHOUT_CUDA(TierReuse)

void run_cpu(const TierReuse& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int32_t *was = a.last[r], *was_end = was + a.last_count[r];
    const std::int32_t* asked = a.asked.row(r);
    a.hits[r] = 0;
    for (std::int64_t i = 0; i < a.asked.size(r); ++i) {
      was = std::lower_bound(was, was_end, asked[i]);
      if ((was != was_end && *was == asked[i]) || (a.held_from != nullptr && asked[i] >= a.held_from[r])) ++a.hits[r];
    }
    std::copy_n(a.now.row(r), a.now.size(r), a.last[r]);
  }
}

}  // namespace kvlab
