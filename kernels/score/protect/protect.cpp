#include "kernels/score/protect/protect.h"

#include <algorithm>

#include "base/parallel.h"

namespace kvlab {

// Positions are read, the protected scores written; counted as if all scores were.
OpCall call(const Protect& a) {
  return {.op = "protect",
          .rows = a.kv.num_rows,
          .tokens = a.kv.total(),
          .outputs = a.kv.total(),
          .bytes = 8 * a.kv.total(),
          .flops = 2 * a.kv.total()};
}
KVLAB_WITHOUT_CUDA(Protect)

void run_cpu(const Protect& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    const std::int32_t end = a.end_position[a.kv.sequence(r)];
    const std::int32_t front = std::max(a.sinks, a.all_before == nullptr ? 0 : a.all_before[a.kv.sequence(r)]);
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
      const std::int32_t position = a.kv.position[a.kv.slot(r, i)];
      if (position < front || position >= end - a.recent) a.scores[a.kv.first[r] + i] = a.value;
    }
  });
}

}  // namespace kvlab
