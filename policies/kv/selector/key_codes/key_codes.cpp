#include "policies/kv/selector/key_codes/key_codes.h"

namespace kvlab {

OpCall call(const KeyCodes& a) {
  if (a.kind == KeyCodes::Kind::kTrain) return {.op = "train_codes", .rows = a.kv.num_rows};
  OpCall c{.op = "assign_codes", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.to[r] - a.from[r];
    if (n <= 0) continue;
    c.tokens += n;
    c.outputs += n;
    c.bytes += (n + a.codes[r]) * d * a.kv.kv_bytes + 2 * n;
    c.flops += 2 * n * d * (d + a.codes[r]);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(KeyCodes)

}  // namespace kvlab
