#include "kernels/attention/delta_rows/delta_rows.h"

#include "base/ceil_div.h"

namespace kvlab {

std::int64_t dense_pairs(const DeltaRows& a) {
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < a.corrected(); i += a.stride) pairs += a.visible(i);
  for (std::int64_t i = a.corrected(); i < a.new_tokens; ++i) pairs += a.visible(i);
  return pairs;
}

OpCall call(const DeltaRows& a) {
  const std::int64_t rows = ceil_div(a.corrected(), a.stride) + a.tail(), width = a.q_heads * a.head_dim;
  const std::int64_t seen = a.new_tokens == 0 ? 0 : a.visible(a.new_tokens - 1);
  return {.op = "delta_rows",
          .rows = a.kv_heads,
          .tokens = a.kv_heads * dense_pairs(a),
          .outputs = rows,
          .bytes = 2 * a.kv_heads * seen * a.head_dim * a.kv_bytes + (2 * rows + 2 * a.corrected()) * width * a.activation_bytes,
          .flops = 4 * dense_pairs(a) * width + a.corrected() * width};
}
KVLAB_WITHOUT_CUDA(DeltaRows)

}  // namespace kvlab
