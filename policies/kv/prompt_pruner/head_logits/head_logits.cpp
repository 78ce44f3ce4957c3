#include "policies/kv/prompt_pruner/head_logits/head_logits.h"

namespace kvlab {

OpCall call(const HeadLogits& a) {
  OpCall c{.op = "head_logits", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim, rows = a.kv.kv_heads, group = a.kv.group;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const std::int64_t n = a.first[s + 1] - a.first[s];
    c.tokens += rows * n;
    c.outputs += n;
    c.bytes += rows * (n * d * a.kv.kv_bytes + group * d * 2) + 4 * n;
    c.flops += rows * d * (2 * n + group);
  }
  return c;
}

}  // namespace kvlab
