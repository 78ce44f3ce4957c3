#include "policies/kv/scorer/keep_queries/keep_queries.h"

#include <algorithm>

namespace kvlab {

OpCall call(const KeepQueries& a) {
  std::int64_t queries = 0;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) queries += a.queries[s].count;
  return {.op = "keep_queries", .rows = a.num_sequences, .outputs = queries, .bytes = 8 * queries * a.width};
}

void run_cpu(const KeepQueries& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const Queries& q = a.queries[s];
    for (std::int32_t t = 0; t < q.count; ++t) {
      const std::int64_t slot = (q.first_position + t) % a.ring_tokens;
      std::copy_n(q.data + std::int64_t{t} * a.width, a.width, a.ring[s] + slot * a.width);
    }
  }
}

}  // namespace kvlab
