#include "policies/kv/disposal/merging.h"

#include "kernels/select/list_dropped/list_dropped.h"
#include "kernels/storage/compact/compact_rows.h"

namespace kvlab {

PartedRows part_rows(LayerStep& step, const Kept& kept) {
  const KvRows& kv = step.kv;
  std::int64_t* const first = step.ops.host_longs(kv.num_rows + 1);
  for (std::int32_t r = 0; r <= kv.num_rows; ++r) first[r] = kv.first[r] - kept.index_first[r];
  PartedRows rows{kv, kept.index_first, kept.index, first, nullptr};
  std::int32_t* const dropped = step.ops.ints(rows.total_dropped());
  step.ops(ListDropped{rows, dropped});
  rows.dropped = dropped;
  return rows;
}

void compact(LayerStep& step, const Kept& kept) { step.ops(CompactRows{step.kv, kept.index_first, kept.index}); }

}  // namespace kvlab
