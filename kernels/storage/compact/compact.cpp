#include "kernels/storage/compact/compact.h"

#include <algorithm>

#include "base/parallel.h"

namespace kvlab {

OpCall call(const CompactRows& a) {
  const std::int64_t kept = a.index_first[a.kv.num_rows];
  const std::int64_t moved = bytes(CompactShape{kept, 1, 1, a.kv.head_dim, a.kv.kv_bytes});
  return {
      .op = "compact", .rows = a.kv.num_rows, .tokens = a.kv.total(), .outputs = kept, .bytes = moved + kept * (8 + 8 * a.kv.num_words)};
}
KVLAB_WITHOUT_CUDA(CompactRows)

void run_cpu(const CompactRows& a) {
  const std::int64_t d = a.kv.head_dim;
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    const std::int32_t* index = a.index + a.index_first[r];
    const auto kept = static_cast<std::int32_t>(a.index_first[r + 1] - a.index_first[r]);
    for (std::int32_t i = 0; i < kept; ++i) {
      if (index[i] == i) continue;
      const std::int64_t from = a.kv.slot(r, index[i]), to = a.kv.slot(r, i);
      std::copy_n(a.kv.k + from * d, d, a.kv.k + to * d);
      std::copy_n(a.kv.v + from * d, d, a.kv.v + to * d);
      a.kv.position[to] = a.kv.position[from];
      for (std::int32_t w = 0; w < a.kv.num_words; ++w) a.kv.words[w * a.kv.pool_tokens + to] = a.kv.words[w * a.kv.pool_tokens + from];
    }
  });
}

}  // namespace kvlab
