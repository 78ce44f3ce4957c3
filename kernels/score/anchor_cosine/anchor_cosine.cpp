#include "kernels/score/anchor_cosine/anchor_cosine.h"

namespace kvlab {

OpCall call(const AnchorCosine& a) {
  const std::int64_t n = a.kv.total(), d = a.kv.head_dim;
  std::int64_t anchors = 0;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) anchors += a.end[r] - a.begin[r];
  return {.op = "anchor_cosine",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = (n + anchors) * d * a.kv.kv_bytes + 4 * n,
          .flops = 4 * (n + anchors) * d};
}
KVLAB_WITHOUT_CUDA(AnchorCosine)

}  // namespace kvlab
