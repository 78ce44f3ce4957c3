#include "kernels/dot_cpu.h"
#include "policies/kv/scorer/key_dot/key_dot.h"

namespace kvlab {

void run_cpu(const KeyDot& a) {
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) a.out[a.kv.first[r] + i] = a.factor * lane_dot(a.kv.key(r, i), a.vectors + r * d, d);
}

}  // namespace kvlab
