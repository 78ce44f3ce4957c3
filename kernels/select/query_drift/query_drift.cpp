#include "kernels/select/query_drift/query_drift.h"

namespace kvlab {

OpCall call(const QueryDrift& a) {
  OpCall c{.op = "query_drift", .rows = a.num_sequences, .outputs = a.num_sequences};
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    if (a.rule[s] == QueryDrift::kNever) continue;
    const bool compares = a.rule[s] == QueryDrift::kIfTurned;
    c.bytes += static_cast<std::int64_t>(a.width) * (compares ? 10 : 6);
    c.flops += compares ? 6LL * a.width : 0;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(QueryDrift)

}  // namespace kvlab
