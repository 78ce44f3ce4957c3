#include "kernels/score/protect/protect.h"

#include <algorithm>

#include "base/parallel.h"

namespace kvlab {

// As if all scores were protected.
OpCall call(const Protect& a) {
  const std::int64_t n = a.kv.total();
  return {.op = "protect",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = (a.above_max ? 12 : 8) * n,
          .flops = (a.above_max ? 3 : 2) * n};
}
KVLAB_WITHOUT_CUDA(Protect)

void run_cpu(const Protect& a) {
  for_each_in_parallel(a.kv.num_sequences(), [&](std::int64_t s) {
    const auto row0 = static_cast<std::int32_t>(s) * a.kv.kv_heads;
    const auto for_each = [&](auto&& f) {
      for (std::int32_t r = row0; r < row0 + a.kv.kv_heads; ++r)
        for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
          const std::int32_t position = a.kv.position[a.kv.slot(r, i)];
          f((position >= a.begin[s] && position < a.end[s]) == a.inside, a.scores[a.kv.first[r] + i]);
        }
    };
    float value = a.value;
    if (a.above_max) {
      float top = -std::numeric_limits<float>::infinity();
      for_each([&](bool stays, float score) { top = stays ? top : std::max(top, score); });
      value = top == -std::numeric_limits<float>::infinity() ? 1.0F : top + 1.0F;
    }
    for_each([&](bool stays, float& score) {
      if (stays) score = value;
    });
  });
}

}  // namespace kvlab
