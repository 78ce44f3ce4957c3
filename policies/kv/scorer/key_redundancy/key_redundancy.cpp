#include "policies/kv/scorer/key_redundancy/key_redundancy.h"

namespace kvlab {

OpCall call(const KeyRedundancy& a) {
  const std::int64_t n = a.kv.total(), d = a.kv.head_dim;
  OpCall c{.op = "key_redundancy", .rows = a.kv.num_rows, .tokens = n, .outputs = n, .bytes = n * d * a.kv.kv_bytes + 4 * n};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) c.flops += 2 * d * a.kv.len[r] * a.kv.len[r];
  return c;
}
KVLAB_WITHOUT_CUDA(KeyRedundancy)

}  // namespace kvlab
