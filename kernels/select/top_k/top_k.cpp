#include "kernels/select/top_k/top_k.h"

namespace kvlab {

OpCall call(const TopK& a) {
  const std::int64_t tokens = a.first[a.num_rows], kept = a.index_first[a.num_rows];
  return {.op = "top_k", .rows = a.num_rows, .tokens = tokens, .outputs = kept, .bytes = 4 * tokens + 4 * kept, .flops = 2 * tokens};
}
KVLAB_WITHOUT_CUDA(TopK)

OpCall call(const TopKPooled& a) {
  const std::int32_t rows = a.num_pools * a.rows_per_pool;
  const std::int64_t tokens = a.first[rows];
  return {.op = "top_k_pooled", .rows = rows, .tokens = tokens, .outputs = rows, .bytes = 4 * tokens + 4 * rows, .flops = 2 * tokens};
}
KVLAB_WITHOUT_CUDA(TopKPooled)

}  // namespace kvlab
