#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// A layer's share of the budget, unnormalised: *out[s] = entropy[s]^(1 / tau_entropy) * variance[s]^(1 / tau_variance). CAKE, Qin et al.
// 2025.
struct LayerPreference {
  std::int32_t num_sequences = 0;
  const float* entropy = nullptr;   // [num_sequences]
  const float* variance = nullptr;  // [num_sequences]
  double tau_entropy = 1.0, tau_variance = 1.0;
  float* const* out = nullptr;  // [num_sequences] one float each
};
OpCall call(const LayerPreference&);
void run_cpu(const LayerPreference&);
// entropy and variance are in device memory, the numbers that `out` points to in CPU memory; waits for the stream.
void run_cuda(const LayerPreference&, CudaContext&);

}  // namespace kvlab
