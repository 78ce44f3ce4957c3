#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// out[b] = max of in[j], j in [b * stride - before, b * stride + span - before): LServe's logical pages (Yang et al. 2025), InfLLM v2's
// kernels.
struct BlockMax {
  std::int32_t num_rows = 0;
  std::int32_t stride = 1, before = 0, span = 1;  // in units of `in`
  const std::int64_t* in_first = nullptr;         // [num_rows + 1]
  const float* in = nullptr;
  const std::int64_t* first = nullptr;  // [num_rows + 1] blocks
  float* out = nullptr;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t read = in_first[num_rows], written = first[num_rows];
    return {
        .op = "block_max", .rows = num_rows, .tokens = read, .outputs = written, .bytes = 4 * (read + written), .flops = written * span};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit(in_first, num_rows + 1), visit(first, num_rows + 1); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return first[row + 1] - first[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t b) const {
    const float* const x = in + in_first[row];
    const std::int64_t from = b * stride - before, n = in_first[row + 1] - in_first[row], end = from + span < n ? from + span : n;
    float top = -INFINITY;
    for (std::int64_t j = from < 0 ? 0 : from; j < end; ++j) top = top < x[j] ? x[j] : top;
    out[first[row] + b] = top;
  }
};
KVLAB_EACH_OP(BlockMax)

}  // namespace kvlab
