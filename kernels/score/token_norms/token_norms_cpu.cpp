#include <cmath>

#include "kernels/dot_cpu.h"
#include "kernels/score/token_norms/token_norms.h"

namespace kvlab {

void run_cpu(const TokenNorms& a) {
  const float* data = a.of == TokenNorms::Of::kKey ? a.kv.k : a.kv.v;
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    float* out = a.out + a.kv.first[r];
    for_each_run(a.kv, r, [&](const KvRun& run) {
      for (std::int32_t i = 0; i < run.count; ++i) {
        const float* x = data + (run.slot + i) * d;
        if (a.kind == TokenNorms::Kind::kL1) {
          out[run.begin + i] = lane_sum(x, x, d, [](const Lanes& m, const Lanes&) -> Lanes { return m.abs(); });
        } else if (a.kind == TokenNorms::Kind::kDot) {
          out[run.begin + i] = a.factor * lane_dot(x, a.vectors + r * d, d);
        } else {
          const float squares = lane_dot(x, x, d);
          out[run.begin + i] = a.kind == TokenNorms::Kind::kL2 ? std::sqrt(squares) : squares;
        }
      }
    });
  }
}

}  // namespace kvlab
