#include "kernels/score/reduce_heads/reduce_heads.h"

#include <cmath>
#include <limits>
#include <vector>

namespace kvlab {

namespace {

void reduce_sequence(const ReduceHeads& a, std::int32_t row0, std::vector<std::int32_t>& at) {
  const KvRows& kv = a.kv;
  const auto position = [&](std::int32_t h) {
    const std::int32_t i = at[static_cast<std::size_t>(h)];
    return a.by_position ? kv.position[kv.slot(row0 + h, i)] : i;
  };
  const auto left = [&](std::int32_t h) { return at[static_cast<std::size_t>(h)] < kv.len[row0 + h]; };
  at.assign(static_cast<std::size_t>(kv.kv_heads), 0);
  while (true) {
    std::int32_t next = std::numeric_limits<std::int32_t>::max(), heads = 0;
    for (std::int32_t h = 0; h < kv.kv_heads; ++h)
      if (left(h)) next = std::min(next, position(h));
    if (next == std::numeric_limits<std::int32_t>::max()) return;
    float sum = 0.0F;
    for (std::int32_t h = 0; h < kv.kv_heads; ++h)
      if (left(h) && position(h) == next) sum += a.scores[kv.first[row0 + h] + at[static_cast<std::size_t>(h)]], ++heads;
    if (a.kind == ReduceHeads::Kind::kMean) sum /= static_cast<float>(heads);
    if (a.kind == ReduceHeads::Kind::kRootOfSum) sum = std::sqrt(sum);
    for (std::int32_t h = 0; h < kv.kv_heads; ++h)
      if (left(h) && position(h) == next) a.scores[kv.first[row0 + h] + at[static_cast<std::size_t>(h)]++] = sum;
  }
}

}  // namespace

// Scores and, if they count, positions are read once, scores written once.
OpCall call(const ReduceHeads& a) {
  return {.op = "reduce_heads",
          .rows = a.kv.num_rows,
          .tokens = a.kv.total(),
          .outputs = a.kv.total(),
          .bytes = (a.by_position ? 12 : 8) * a.kv.total(),
          .flops = a.kv.total()};
}
KVLAB_WITHOUT_CUDA(ReduceHeads)

void run_cpu(const ReduceHeads& a) {
  std::vector<std::int32_t> at;
  for (std::int32_t row0 = 0; row0 < a.kv.num_rows; row0 += a.kv.kv_heads) reduce_sequence(a, row0, at);
}

}  // namespace kvlab
