#include "kernels/score/score_map/score_map.h"

#include <algorithm>
#include <cmath>

namespace kvlab {

// Operands are read and the result written once.
OpCall call(const ScoreMap& a) {
  const std::int64_t n = a.num_rows == 0 ? 0 : a.first[a.num_rows];
  return {
      .op = "score_map", .rows = a.num_rows, .tokens = n, .outputs = n, .bytes = n * (a.uses_b ? 12 : 8), .flops = n * (a.uses_b ? 4 : 2)};
}
KVLAB_WITHOUT_CUDA(ScoreMap)

void run_cpu(const ScoreMap& m) {
  for (std::int32_t r = 0; r < m.num_rows; ++r) {
    const float b_factor = m.row_factor == nullptr ? 1.0F : m.row_factor[r];
    for (std::int64_t i = m.first[r]; i < m.first[r + 1]; ++i) {
      const float a = m.a_factor * m.a[i] + m.a_plus;
      if (std::isinf(m.a[i])) {
        m.out[i] = m.a[i];
      } else if (!m.uses_b) {
        m.out[i] = a;
      } else {
        const float b = b_factor * m.b[i];
        m.out[i] = m.kind == ScoreMap::Kind::kPlus ? a + b : m.kind == ScoreMap::Kind::kTimes ? a * b : a / std::max(b, 1e-12F);
      }
    }
  }
}

}  // namespace kvlab
