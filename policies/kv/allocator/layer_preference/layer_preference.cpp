#include "policies/kv/allocator/layer_preference/layer_preference.h"

#include <cmath>

namespace kvlab {

OpCall call(const LayerPreference& a) {
  const std::int64_t n = a.num_sequences;
  return {.op = "layer_preference", .rows = n, .outputs = n, .bytes = 12 * n, .flops = 3 * n};
}
KVLAB_WITHOUT_CUDA(LayerPreference)

void run_cpu(const LayerPreference& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s)
    *a.out[s] = static_cast<float>(std::pow(static_cast<double>(a.entropy[s]), 1 / a.tau_entropy) *
                                   std::pow(static_cast<double>(a.variance[s]), 1 / a.tau_variance));
}

}  // namespace kvlab
