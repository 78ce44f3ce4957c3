#include "kernels/protect_span/protect_span.h"

namespace kvlab {

// Counted like protect.
OpCall call(const ProtectSpan& a) {
  return {"protect_span", a.kv.num_rows, a.kv.total(), a.kv.total(), 8 * a.kv.total(), 2 * a.kv.total()};
}

void run_cpu(const ProtectSpan& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
      const std::int32_t position = a.kv.position[a.kv.slot(r, i)];
      if (position >= a.begin && position < a.end) a.scores[a.kv.first[r] + i] = a.value;
    }
}

}  // namespace kvlab
