#include "policies/kv/prompt_pruner/unit_scores/unit_scores.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvlab {

OpCall call(const UnitBlockScores& a) {
  const std::int64_t n = std::accumulate(a.len, a.len + a.num_rows, std::int64_t{0});
  return {.op = "unit_scores", .rows = a.num_rows, .tokens = n, .outputs = n, .bytes = 8 * n, .flops = n + n / a.unit_tokens};
}

void run_cpu(const UnitBlockScores& a) {
  const std::int32_t block = a.unit_tokens * a.units_per_block;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    float* const scores = a.scores + a.first[r] + a.begin[r];
    for (std::int32_t at = 0; at < a.len[r]; at += block) {
      float top = -std::numeric_limits<float>::infinity();
      for (float* unit = scores + at; unit < scores + at + block; unit += a.unit_tokens)
        top = std::max(top, std::accumulate(unit, unit + a.unit_tokens, 0.0F) / static_cast<float>(a.unit_tokens));
      std::fill_n(scores + at, block, top);
    }
  }
}

}  // namespace kvlab
