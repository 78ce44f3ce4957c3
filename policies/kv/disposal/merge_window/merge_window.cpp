#include "policies/kv/disposal/merge_window/merge_window.h"

#include <algorithm>

#include "base/random.h"

namespace kvlab {

namespace {

// Kept ones: [begin, begin + count).
bool joins(const MergeWindow& a, std::int32_t row, std::int32_t token, const std::int32_t* begin, std::int32_t count) {
  const KvRows& kv = a.rows.kv;
  const float* const mass = a.mass + kv.first[row];
  double sum = 0;
  for (std::int32_t j = 0; j < count; ++j) sum += static_cast<double>(mass[begin[j]]);
  const auto own = static_cast<double>(mass[token]);
  const Draw draw{static_cast<std::uint64_t>(a.seeds[kv.sequence(row)]), Purpose::kMerge, static_cast<std::uint64_t>(row % kv.kv_heads),
                  static_cast<std::uint64_t>(kv.position[kv.slot(row, token)])};
  return draw.uniform() * sum < own * count;  // without dividing, for a mean of 0
}

}  // namespace

OpCall call(const MergeWindow& a) {
  const KvRows& kv = a.rows.kv;
  OpCall c{
      .op = "merge_window", .rows = kv.num_rows, .tokens = a.rows.total_dropped(), .bytes = 4 * kv.total() + 4 * a.rows.total_dropped()};
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const std::int64_t dropped = a.rows.num_dropped(r), kept = a.rows.num_kept(r), window = std::min<std::int64_t>(a.window, kept);
    const std::int64_t receivers = std::min(kept, dropped * window);
    c.outputs += receivers;
    c.bytes += (dropped + 2 * receivers) * kv.head_dim * kv.kv_bytes;
    c.flops += dropped * window * (2 * kv.head_dim + 1);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(MergeWindow)

void run_cpu(const MergeWindow& a) {
  const KvRows& kv = a.rows.kv;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const std::int32_t *next = a.rows.kept + a.rows.kept_first[r], *end = a.rows.kept + a.rows.kept_first[r + 1];
    for (std::int64_t i = a.rows.dropped_first[r]; i < a.rows.dropped_first[r + 1]; ++i) {
      const std::int32_t token = a.rows.dropped[i];
      while (next != end && *next < token) ++next;
      const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(a.window, end - next));
      if (count == 0 || !joins(a, r, token, next, count)) continue;
      const float* const from = kv.value(r, token);
      for (std::int32_t j = 0; j < count; ++j) {
        float* const to = kv.value(r, next[j]);
        for (std::int32_t c = 0; c < kv.head_dim; ++c) to[c] += from[c] / static_cast<float>(count);
      }
    }
  }
}

}  // namespace kvlab
