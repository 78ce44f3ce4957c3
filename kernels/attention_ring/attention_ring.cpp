#include "kernels/attention_ring/attention_ring.h"

#include <algorithm>
#include <bit>

namespace kvlab {

OpCall call(const PushAttention& a) {
  OpCall c{"push_attention", a.kv.num_rows, 0, 0, 0, 0};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.tokens(r), w = std::min(a.ring, a.queries[a.kv.sequence(r)].count);
    if (n == 0 || w == 0) continue;
    c.tokens += n;
    c.outputs += n;
    c.bytes += n * a.kv.head_dim * a.kv.kv_bytes + n * 4 * (w + 1) + w * a.kv.group * a.kv.head_dim * 2;
    c.flops += n * w * a.kv.group * (2LL * a.kv.head_dim + 3);
  }
  return c;
}

OpCall call(const RingSums& a) {
  const std::int64_t n = a.kv.total();
  return {"ring_sums", a.kv.num_rows, n, n, 4 * n * (a.ring + 1), n * a.ring};
}

void run_cpu(const RingSums& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
      float sum = 0;
      for (std::int32_t j = 0; j < a.ring; ++j) sum += std::bit_cast<float>(a.kv.word(a.first_word + j, r, i));
      a.scores[a.kv.first[r] + i] = sum;
    }
  }
}

}  // namespace kvlab
