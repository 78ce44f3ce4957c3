#include "kernels/select/top_k/top_k.h"

namespace kvlab {

OpCall call(const TopK& a) {
  const bool counts = a.kind == TopK::Kind::kCounts;
  const std::int64_t tokens = a.first[a.num_rows], outputs = counts ? a.num_rows : a.index_first[a.num_rows];
  return {.op = counts ? "top_k_pooled" : "top_k",
          .rows = a.num_rows,
          .tokens = tokens,
          .outputs = outputs,
          .bytes = 4 * tokens + 4 * outputs,
          .flops = 2 * tokens};
}
KVLAB_WITHOUT_CUDA(TopK)

}  // namespace kvlab
