#include "kernels/score/token_norms/token_norms.h"

namespace kvlab {

OpCall call(const TokenNorms& a) {
  const std::int64_t n = a.kv.total();
  const bool is_dot = a.kind == TokenNorms::Kind::kDot;
  return {.op = is_dot ? "key_dot" : "token_norms",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = n * (a.kv.head_dim * a.kv.kv_bytes + 4) + (is_dot ? 4 * a.kv.num_rows * a.kv.head_dim : 0),
          .flops = 2 * n * a.kv.head_dim};
}
KVLAB_WITHOUT_CUDA(TokenNorms)

}  // namespace kvlab
