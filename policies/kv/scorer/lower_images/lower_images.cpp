#include "policies/kv/scorer/lower_images/lower_images.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.h"

namespace kvlab {

OpCall call(const LowerImages& a) {
  const std::int64_t n = a.kv.total();
  return {.op = "lower_images", .rows = a.kv.num_rows, .tokens = n, .outputs = n, .bytes = 20 * n, .flops = 4 * n};
}

void run_cpu(const LowerImages& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t i) {
    const auto row = static_cast<std::int32_t>(i);
    float* const scores = a.scores + a.kv.first[row];
    float least = std::numeric_limits<float>::infinity(), most = -least;
    for (std::int32_t t = 0; t < a.kv.len[row]; ++t) {
      if (!std::isfinite(scores[t])) continue;
      least = std::min(least, scores[t]), most = std::max(most, scores[t]);
    }
    if (most < least) return;
    const std::int32_t* const ids = a.ids[a.kv.sequence(row)];
    for (std::int32_t t = 0; t < a.kv.len[row]; ++t)
      if (ids[a.kv.position[a.kv.slot(row, t)]] == a.image_id) scores[t] -= most - least + 1.0F;
  });
}

}  // namespace kvlab
