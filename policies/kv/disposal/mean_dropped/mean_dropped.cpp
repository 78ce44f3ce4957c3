#include "policies/kv/disposal/mean_dropped/mean_dropped.h"

#include <vector>

namespace kvlab {

OpCall call(const MeanDropped& a) {
  const KvRows& kv = a.rows.kv;
  const std::int64_t dropped = a.rows.total_dropped(), d = kv.head_dim;
  std::int64_t rows = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) rows += a.rows.num_dropped(r) > 0 ? 1 : 0;
  return {
      "mean_dropped", kv.num_rows, dropped, rows, (2 * dropped + 4 * rows) * d * kv.kv_bytes + 4 * dropped, 2 * d * dropped + 4 * d * rows};
}
KVLAB_WITHOUT_CUDA(MeanDropped)

void run_cpu(const MeanDropped& a) {
  const KvRows& kv = a.rows.kv;
  const std::int64_t d = kv.head_dim;
  std::vector<double> sum(static_cast<std::size_t>(d));
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const std::int64_t begin = a.rows.dropped_first[r], end = a.rows.dropped_first[r + 1];
    if (begin == end) continue;
    for (const bool keys : {true, false}) {
      float* const mean = (keys ? a.k_mean : a.v_mean) + a.line[r] * d;
      for (std::int64_t c = 0; c < d; ++c) sum[static_cast<std::size_t>(c)] = a.before[r] == 0 ? 0 : double{mean[c]} * a.before[r];
      for (std::int64_t i = begin; i < end; ++i) {
        const float* const x = keys ? kv.key(r, a.rows.dropped[i]) : kv.value(r, a.rows.dropped[i]);
        for (std::int64_t c = 0; c < d; ++c) sum[static_cast<std::size_t>(c)] += double{x[c]};
      }
      const double count = a.before[r] + static_cast<double>(end - begin);
      for (std::int64_t c = 0; c < d; ++c) mean[c] = static_cast<float>(sum[static_cast<std::size_t>(c)] / count);
    }
  }
}

}  // namespace kvlab
