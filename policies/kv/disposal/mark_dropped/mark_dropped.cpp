#include "policies/kv/disposal/mark_dropped/mark_dropped.h"

#include <algorithm>

#include "kernels/score/word_scores/word_scores.h"

namespace kvlab {

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
      if ((word & kTokenMark) != 0) continue;
      word |= kTokenMark;
      *out++ = a.rows.dropped[i];
    }
    std::fill(out, end, -1);
  }
}

}  // namespace kvlab
