#include "policies/kv/selector/product_codes/product_codes.h"

#include "base/ceil_div.h"

namespace kvlab {

std::int32_t ProductShape::code_bytes() const {
  std::int32_t bits = 1;
  while (1 << bits < centers) ++bits;
  return ceil_div(parts * bits, 8);
}

OpCall call(const TrainProduct& a) {
  OpCall c{.op = "train_product", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.end[r] - a.begin[r];
    if (n <= 0) continue;
    c.tokens += n;
    c.outputs += a.centers[r];
    c.bytes += (a.rounds * n + a.centers[r]) * d * a.kv.kv_bytes;
    c.flops += 2 * a.rounds * n * a.centers[r] * d;
  }
  return c;
}

OpCall call(const AssignProduct& a) {
  OpCall c{.op = "assign_product", .rows = a.kv.num_rows};
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t n = a.to[r] - a.from[r];
    if (n <= 0) continue;
    c.tokens += n;
    c.outputs += n;
    c.bytes += (n + a.centers[r]) * d * a.kv.kv_bytes + n * a.shape.code_bytes();
    c.flops += 2 * n * a.centers[r] * d;
  }
  return c;
}

OpCall call(const ProductScores& a) {
  OpCall c{.op = "product_scores", .rows = a.num_rows};
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t n = a.first[r + 1] - a.first[r];
    if (n == 0) continue;
    c.tokens += n;
    c.outputs += n;
    c.bytes += std::int64_t{a.centers[r]} * a.head_dim * a.kv_bytes + n * (a.shape.code_bytes() + 4);
    c.flops += a.group * (2LL * a.centers[r] * a.head_dim + n * (a.shape.parts + 4));
  }
  return c;
}

}  // namespace kvlab
