#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// A layer's share of the budget, unnormalised: out[s] = entropy[s]^(1 / tau_entropy) * variance[s]^(1 / tau_variance). CAKE, Qin et al.
// 2025.
struct LayerPreference {
  std::int32_t num_sequences = 0;
  const float* entropy = nullptr;   // [num_sequences]
  const float* variance = nullptr;  // [num_sequences]
  double tau_entropy = 1.0, tau_variance = 1.0;
  float* out = nullptr;  // [num_sequences] in CPU memory

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = num_sequences;
    return {.op = "layer_preference", .rows = n, .outputs = n, .bytes = 12 * n, .flops = 3 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return 1; }
  void shapes(auto&& /*visit*/) {}
  void results(auto&& visit) { visit(out, num_sequences); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t /*row*/) const { return num_sequences; }
  KVLAB_BODY void operator()(std::int64_t /*row*/, std::int64_t s) const {
    out[s] = static_cast<float>(std::pow(double{entropy[s]}, 1 / tau_entropy) * std::pow(double{variance[s]}, 1 / tau_variance));
  }
};
KVLAB_EACH_OP(LayerPreference)

}  // namespace kvlab
