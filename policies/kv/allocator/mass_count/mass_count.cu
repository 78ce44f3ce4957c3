#include "kernels/device/cuda/launch.cuh"
#include "policies/kv/allocator/mass_count/leading_mass.cuh"
#include "policies/kv/allocator/mass_count/mass_count.h"

namespace kvlab {

namespace {

__global__ void __launch_bounds__(kMassThreads)
    mass_count(const std::int64_t* first, const float* scores, double mass_frac, std::int32_t* count) {
  KVLAB_SHARED(double, sums, kMassThreads + 1);
  KVLAB_SHARED(std::int32_t, found, 1);
  const std::int64_t begin = first[blockIdx.x], n = first[blockIdx.x + 1] - begin;
  const std::int32_t counted = leading_mass(scores + begin, n, mass_frac, sums, found);
  if (threadIdx.x == 0) count[blockIdx.x] = counted == 0 && n > 0 ? 1 : counted;
}

}  // namespace

void run_cuda(const MassCount& a, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  auto* const count = cuda.scratch<std::int32_t>(a.num_rows);
  launch("mass_count", cuda, {dim3(static_cast<unsigned>(a.num_rows)), dim3(kMassThreads)}, mass_count,
         cuda.upload(a.first, a.num_rows + 1), a.scores, a.mass_frac, count);
  cuda::to_host(a.count, count, 4LL * a.num_rows, cuda.stream());
  cuda.synchronize();
}

}  // namespace kvlab
