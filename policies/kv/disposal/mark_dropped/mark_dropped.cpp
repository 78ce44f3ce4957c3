#include "policies/kv/disposal/mark_dropped/mark_dropped.h"

#include <algorithm>
#include <limits>

namespace kvlab {

namespace {

constexpr std::uint32_t kMark = 1;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

OpCall call(const MarkDropped& a) {
  const std::int64_t dropped = a.rows.total_dropped(), listed = a.rows.kv.num_rows == 0 ? 0 : a.first[a.rows.kv.num_rows];
  return {.op = "mark_dropped",
          .rows = a.rows.kv.num_rows,
          .tokens = dropped,
          .outputs = listed,
          .bytes = 8 * (dropped + listed),
          .flops = dropped};
}
KVLAB_WITHOUT_CUDA(MarkDropped)

void run_cpu(const MarkDropped& a) {
  for (std::int32_t r = 0; r < a.rows.kv.num_rows; ++r) {
    std::int32_t *out = a.index + a.first[r], *const end = a.index + a.first[r + 1];
    for (std::int64_t i = a.rows.dropped_first[r]; i < a.rows.dropped_first[r + 1] && out != end; ++i) {
      std::uint32_t& word = a.rows.kv.word(a.channel, r, a.rows.dropped[i]);
      if ((word & kMark) != 0) continue;
      word |= kMark;
      *out++ = a.rows.dropped[i];
    }
    std::fill(out, end, -1);
  }
}

OpCall call(const LowerMarked& a) {
  return {.op = "lower_marked",
          .rows = a.kv.num_rows,
          .tokens = a.kv.total(),
          .outputs = a.kv.total(),
          .bytes = 12 * a.kv.total(),
          .flops = 2 * a.kv.total()};
}
KVLAB_WITHOUT_CUDA(LowerMarked)

void run_cpu(const LowerMarked& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    float* const scores = a.scores + a.kv.first[r];
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i)
      if ((a.kv.word(a.channel, r, i) & kMark) != 0 && scores[i] != kInfinity) scores[i] = -kInfinity;
  }
}

}  // namespace kvlab
