#include "policies/kv/selector/keep_queries/keep_queries.h"

#include <algorithm>

namespace kvlab {

OpCall call(const KeepQueries& a) {
  OpCall c{.op = "keep_queries", .rows = a.num_sequences};
  for (std::int32_t s = 0; s < a.num_sequences; ++s) c.outputs += a.queries[s].count > 0 ? 1 : 0;
  c.bytes = 4 * c.outputs * a.width;
  return c;
}
KVLAB_WITHOUT_CUDA(KeepQueries)

void run_cpu(const KeepQueries& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s)
    if (a.queries[s].count > 0)
      std::copy_n(a.queries[s].data + static_cast<std::int64_t>(a.queries[s].count - 1) * a.width, a.width, a.to[s]);
}

}  // namespace kvlab
