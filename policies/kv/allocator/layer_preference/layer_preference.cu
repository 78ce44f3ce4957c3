#include "kernels/device/cuda/download.h"
#include "policies/kv/allocator/layer_preference/layer_preference.h"

namespace kvlab {

void run_cuda(const LayerPreference& a, CudaContext& cuda) {
  const std::vector<float> entropy = download(cuda, a.entropy, a.num_sequences), variance = download(cuda, a.variance, a.num_sequences);
  run_cpu(LayerPreference{a.num_sequences, entropy.data(), variance.data(), a.tau_entropy, a.tau_variance, a.out});
}

}  // namespace kvlab
