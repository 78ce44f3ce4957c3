#include "policies/kv/scorer/part_scores/part_scores.h"

#include <algorithm>

namespace kvlab {

OpCall call(const PartScores& a) {
  const std::int64_t n = a.from[a.num_parts];
  return {.op = "part_scores", .rows = a.num_parts, .tokens = n, .outputs = n, .bytes = 8 * n};
}

void run_cpu(const PartScores& a) {
  for (std::int32_t i = 0; i < a.num_parts; ++i) std::copy_n(a.part + a.from[i], a.from[i + 1] - a.from[i], a.scores + a.to[i]);
}

}  // namespace kvlab
