#include "policies/kv/disposal/key_pivots/key_pivots.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "policies/kv/disposal/key_runs/key_links.h"

namespace kvlab {

OpCall call(const KeyPivots& a) {
  const std::int64_t n = a.kv.total();
  return {.op = "key_pivots",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = n * (a.kv.head_dim * a.kv.kv_bytes + 8),
          .flops = 4 * n * a.kv.head_dim};
}
KVLAB_WITHOUT_CUDA(KeyPivots)

void run_cpu(const KeyPivots& a) {
  std::vector<char> linked;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    find_links(a.kv, r, a.min_cosine, linked);
    float* const scores = a.scores + a.kv.first[r];
    const auto joins = [&](std::int32_t i) {
      return linked[static_cast<std::size_t>(i)] != 0 && !std::isinf(scores[i]) && !std::isinf(scores[i - 1]);
    };
    for (std::int32_t begin = 0, end = 0; begin < a.kv.len[r]; begin = end) {
      std::int32_t pivot = begin;
      for (end = begin + 1; end < a.kv.len[r] && joins(end); ++end)
        if (scores[end] > scores[pivot]) pivot = end;
      for (std::int32_t i = begin; i < end; ++i)
        if (i != pivot) scores[i] = -1.0F / std::max(scores[i], std::numeric_limits<float>::min());
    }
  }
}

}  // namespace kvlab
