#include "kernels/head_votes/head_votes.h"

#include <algorithm>

namespace kvlab {

OpCall call(const HeadVotes& a) {
  const std::int32_t rows = a.num_sequences * a.kv_heads;
  const std::int64_t in = a.in_first[rows], out = a.first[a.num_sequences];
  return {"head_votes", rows, in, out, 4 * (in + out), in};
}

void run_cpu(const HeadVotes& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    float* out = a.out + a.first[s];
    const std::int64_t n = a.first[s + 1] - a.first[s];
    std::fill_n(out, n, 0.0F);
    for (std::int32_t r = s * a.kv_heads; r < (s + 1) * a.kv_heads; ++r)
      for (std::int64_t i = 0; i < n; ++i) out[i] += a.in[a.in_first[r] + i];
  }
}

}  // namespace kvlab
