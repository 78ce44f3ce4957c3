#include "kernels/device/cuda/download.h"
#include "policies/kv/allocator/exceeds/exceeds.h"

namespace kvlab {

void run_cuda(const Exceeds& a, CudaContext& cuda) {
  const std::vector<float> values = download(cuda, a.values, a.num_values);
  run_cpu(Exceeds{a.num_values, values.data(), a.threshold, a.flag});
}

}  // namespace kvlab
