#include "kernels/score/protect_above_max/protect_above_max.h"

#include <algorithm>
#include <limits>

namespace kvlab {

// Positions and scores are read, protected scores written; counted as if all scores were.
OpCall call(const ProtectAboveMax& a) {
  return {.op = "protect_above_max",
          .rows = a.kv.num_rows,
          .tokens = a.kv.total(),
          .outputs = a.kv.total(),
          .bytes = 12 * a.kv.total(),
          .flops = 3 * a.kv.total()};
}
KVLAB_WITHOUT_CUDA(ProtectAboveMax)

void run_cpu(const ProtectAboveMax& a) {
  for (std::int32_t row0 = 0; row0 < a.kv.num_rows; row0 += a.kv.kv_heads) {
    const std::int32_t end = a.end_position[a.kv.sequence(row0)];
    const auto for_each = [&](auto&& f) {
      for (std::int32_t r = row0; r < row0 + a.kv.kv_heads; ++r)
        for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
          const std::int32_t position = a.kv.position[a.kv.slot(r, i)];
          f(position < a.sinks || position >= end - a.recent, a.scores[a.kv.first[r] + i]);
        }
    };
    float top = -std::numeric_limits<float>::infinity();
    for_each([&](bool stays, float score) { top = stays ? top : std::max(top, score); });
    const float value = top == -std::numeric_limits<float>::infinity() ? 1.0F : top + 1.0F;
    for_each([&](bool stays, float& score) { score = stays ? value : score; });
  }
}

}  // namespace kvlab
