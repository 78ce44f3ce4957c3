#include "kernels/layer_preference/layer_preference.h"

#include <cmath>

namespace kvlab {

OpCall call(const LayerPreference& a) {
  const std::int64_t n = a.num_sequences;
  return {"layer_preference", n, 0, n, 12 * n, 3 * n};
}

void run_cpu(const LayerPreference& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s)
    *a.out[s] = static_cast<float>(std::pow(static_cast<double>(a.entropy[s]), 1 / a.tau_entropy) *
                                   std::pow(static_cast<double>(a.variance[s]), 1 / a.tau_variance));
}

}  // namespace kvlab
