#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"

namespace kvlab {

// Splits each pool's total in proportion to weights: counts[i] = clamp(round(total * w_i / sum w), floor[i], cap[i]). Rounding is
// cumulative: without clamps the counts sum to the total. The tokens that the bounds remove or add are
//   kLost      left as they are
//   kEven      spread evenly over the members that have room
//   kByWeight  spread by weight over the members that have room
// Weights that are negative or not finite count as 0; weights that are all 0 count as equal.
enum class Excess : std::uint8_t { kLost, kEven, kByWeight };
void split_total(std::span<const double> weights, std::int64_t total, std::span<const std::int32_t> floor,
                 std::span<const std::int32_t> cap, Excess excess, std::span<std::int32_t> counts);

// As split_total(). With `softmax_of_negative` weights are exp(-(w_i - min w) / temperature).
struct ShareOut {
  std::int32_t num_pools = 0, members = 0;
  const float* const* weights = nullptr;  // [num_pools] -> [members]
  bool softmax_of_negative = false;
  float temperature = 1.0F;
  const std::int64_t* total = nullptr;  // [num_pools]
  const std::int32_t* floor = nullptr;  // [num_pools, members]
  const std::int32_t* cap = nullptr;    // [num_pools, members]
  Excess excess = Excess::kEven;
  std::int32_t* counts = nullptr;  // [num_pools, members] out
};
OpCall call(const ShareOut&);
void run_cpu(const ShareOut&);
void run_cuda(const ShareOut&, CudaContext&);  // all arrays are in CPU memory: no kernel

}  // namespace kvlab
