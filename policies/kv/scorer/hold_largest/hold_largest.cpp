#include "policies/kv/scorer/hold_largest/hold_largest.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace kvlab {

// Keys are read, scores written as if all of them were held; a selection compares each key twice.
OpCall call(const HoldLargest& a) {
  const std::int64_t n = a.first[a.num_rows];
  return {.op = "hold_largest", .rows = a.num_rows, .tokens = n, .outputs = n, .bytes = 8 * n, .flops = 2 * n};
}
KVLAB_WITHOUT_CUDA(HoldLargest)

void run_cpu(const HoldLargest& a) {
  std::vector<std::int32_t> order;
  for (std::int32_t row = 0; row < a.num_rows; ++row) {
    const auto n = static_cast<std::int32_t>(a.first[row + 1] - a.first[row]);
    const std::int32_t held = a.held(n, a.keep[row]);
    if (held <= 0) continue;
    const float* keys = a.keys + a.first[row];
    order.resize(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + held, order.end(),
                     [&](std::int32_t i, std::int32_t j) { return keys[i] != keys[j] ? keys[i] > keys[j] : i < j; });
    for (std::int32_t k = 0; k < held; ++k)
      a.scores[a.first[row] + order[static_cast<std::size_t>(k)]] = std::numeric_limits<float>::infinity();
  }
}

}  // namespace kvlab
