#include "policies/kv/scorer/leverage/leverage.h"

#include <cmath>

#include "base/random.h"

namespace kvlab {

double Leverage::sketch(std::int32_t channel, std::int32_t feature) const {
  return Draw{seed, Purpose::kPolicy, static_cast<std::uint64_t>(channel), static_cast<std::uint64_t>(feature)}.normal() /
         std::sqrt(sketch_dim);
}

// The sketch, or cosines of each query head; the sum of products, its factor, the triangular solve.
OpCall call(const Leverage& a) {
  const std::int64_t n = a.kv.total(), d = a.kv.head_dim, m = a.features(), solve = 3 * n * m * m + a.kv.num_rows * m * m * m / 3;
  OpCall c{.op = "key_leverage", .rows = a.kv.num_rows, .tokens = n, .outputs = n, .bytes = n * (d * a.kv.kv_bytes + 12 * m + 4)};
  c.flops = (a.sketch_dim > 0 ? 2 * n * d * m : 0) + solve;
  if (a.kind == Leverage::Kind::kKeys) return c;
  c.op = "value_leverage", c.bytes = 4 * n * d * a.kv.kv_bytes + 4 * n, c.flops = a.kv.group * (4 * n * d + solve);
  return c;
}
KVLAB_WITHOUT_CUDA(Leverage)

}  // namespace kvlab
