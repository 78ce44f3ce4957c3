#include "policies/kv/scorer/protect_span/protect_span.h"

namespace kvlab {

// Counted like protect.
OpCall call(const ProtectSpan& a) {
  return {.op = "protect_span",
          .rows = a.kv.num_rows,
          .tokens = a.kv.total(),
          .outputs = a.kv.total(),
          .bytes = 8 * a.kv.total(),
          .flops = 2 * a.kv.total()};
}
KVLAB_WITHOUT_CUDA(ProtectSpan)

void run_cpu(const ProtectSpan& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
      const std::int32_t position = a.kv.position[a.kv.slot(r, i)];
      if (position >= a.begin && position < a.end) a.scores[a.kv.first[r] + i] = a.value;
    }
}

}  // namespace kvlab
