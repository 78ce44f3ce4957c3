#include "policies/kv/selector/row_state.h"

namespace kvlab {

const std::int32_t* RowProgress::advance(const LayerStep& step) {
  std::int32_t* from = step.ops.host_ints(step.kv.num_rows);
  for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {
    const SeqStep& seq = step.seqs[static_cast<std::size_t>(step.kv.sequence(r))];
    RowMark& mark = marks_.at(step, r);
    // Runs at least once a step: any other end means that another sequence took the place.
    const bool follows = seq.seen_tokens > 0 && (mark.end == seq.seen_tokens || mark.end == seq.end());
    from[r] = follows && mark.grew_to(seq, step.kv.len[r]) ? mark.len : 0;
    mark = {step.kv.len[r], seq.end()};
  }
  return from;
}

}  // namespace kvlab
