#include "kernels/token_norms/token_norms.h"

namespace kvlab {

// One multiply-add per channel; keys or values are read once, one float per token is written.
OpCall call(const TokenNorms& a) {
  const std::int64_t n = a.kv.total();
  return {"token_norms", a.kv.num_rows, n, n, n * (a.kv.head_dim * a.kv.kv_bytes + 4), 2 * n * a.kv.head_dim};
}

}  // namespace kvlab
