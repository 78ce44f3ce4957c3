#include "kernels/storage/prune_channels/prune_channels.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace kvlab {

OpCall call(const PruneChannels& a) {
  const std::int64_t n = a.tokens.total(), rows = a.tokens.kv.num_rows, d = a.tokens.kv.head_dim;
  return {.op = "prune_channels",
          .rows = rows,
          .tokens = n,
          .outputs = n,
          .bytes = a.tokens.dense_bytes() + a.tokens.list_bytes() + n * a.keep * a.tokens.kv.kv_bytes + 4 * rows * d,
          .flops = 2 * rows * d};
}
KVLAB_WITHOUT_CUDA(PruneChannels)

std::vector<std::int32_t> ranked_channels(const PruneChannels& a, std::int32_t row) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(a.tokens.kv.head_dim));
  const float* const score = a.channel_score + static_cast<std::int64_t>(a.line[row]) * a.tokens.kv.head_dim;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) { return score[x] > score[y]; });
  return order;
}

void run_cpu(const PruneChannels& a) {
  const std::int32_t d = a.tokens.kv.head_dim;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::vector<std::int32_t> order = ranked_channels(a, r);
    const std::int32_t tokens = a.tokens.count(r);
    for (std::int32_t i = 0; i < tokens; ++i) {
      float* const x = a.tokens.at(r, i);
      for (std::int32_t c = a.keep; c < d; ++c) x[order[static_cast<std::size_t>(c)]] = 0.0F;
    }
  }
}

}  // namespace kvlab
