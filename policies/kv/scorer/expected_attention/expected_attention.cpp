#include "policies/kv/scorer/expected_attention/expected_attention.h"

namespace kvlab {

// Per token and query head d products for the mean and d^2 + d for the quadratic form.
OpCall call(const ExpectedAttention& a) {
  const std::int64_t n = a.kv.total(), d = a.kv.head_dim, heads = a.kv.group, square = a.uses_covariance ? d * d : 0;
  return {.op = "expected_attention",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = n * (d * a.kv.kv_bytes + 4) + 4 * a.kv.num_rows * heads * (d + square),
          .flops = 2 * n * heads * (d + square + (a.uses_covariance ? d : 0))};
}
KVLAB_WITHOUT_CUDA(ExpectedAttention)

}  // namespace kvlab
