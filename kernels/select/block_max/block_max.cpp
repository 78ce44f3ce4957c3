#include "kernels/select/block_max/block_max.h"

#include <algorithm>
#include <limits>

namespace kvlab {

OpCall call(const BlockMax& a) {
  const std::int64_t in = a.in_first[a.num_rows], out = a.first[a.num_rows];
  return {.op = "block_max", .rows = a.num_rows, .tokens = in, .outputs = out, .bytes = 4 * (in + out), .flops = out * a.span};
}
KVLAB_WITHOUT_CUDA(BlockMax)

void run_cpu(const BlockMax& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t n = a.in_first[r + 1] - a.in_first[r], blocks = a.first[r + 1] - a.first[r];
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t from = b * a.stride - a.before;
      float top = -std::numeric_limits<float>::infinity();
      for (std::int64_t j = std::max<std::int64_t>(from, 0); j < std::min(n, from + a.span); ++j)
        top = std::max(top, a.in[a.in_first[r] + j]);
      a.out[a.first[r] + b] = top;
    }
  }
}

}  // namespace kvlab
