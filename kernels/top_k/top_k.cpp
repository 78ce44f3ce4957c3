#include "kernels/top_k/top_k.h"

namespace kvlab {

// A selection reads every score once and writes the kept indices; the comparisons (about two per score) count as FLOPs.
OpCall call(const TopK& a) {
  const std::int64_t tokens = a.first[a.num_rows], kept = a.index_first[a.num_rows];
  return {"top_k", a.num_rows, tokens, kept, 4 * tokens + 4 * kept, 2 * tokens};
}

OpCall call(const TopKPooled& a) {
  const std::int32_t rows = a.num_pools * a.rows_per_pool;
  const std::int64_t tokens = a.first[rows];
  return {"top_k_pooled", rows, tokens, rows, 4 * tokens + 4 * rows, 2 * tokens};
}

}  // namespace kvlab
