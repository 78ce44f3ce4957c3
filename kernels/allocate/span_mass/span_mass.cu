#include "kernels/allocate/span_mass/span_mass.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/upload.h"

namespace kvlab {

namespace {

__global__ void __launch_bounds__(kRowThreads) mass_of_pools(SpanMass a) {
  KVLAB_SHARED(double, shared, 33);
  const int pool = blockIdx.x;
  double sum = 0;
  for (int r = pool * a.rows_per_pool; r < (pool + 1) * a.rows_per_pool; ++r) {
    const float* const scores = a.scores + a.first[r];
    for (int i = threadIdx.x; i < a.head_end[r]; i += kRowThreads) sum += scores[i];
    for (int i = max(a.tail_begin[r], a.head_end[r]) + static_cast<int>(threadIdx.x); i < a.tail_end[r]; i += kRowThreads) sum += scores[i];
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.mass[pool] = static_cast<float>(sum * static_cast<double>(a.factor) / a.rows_per_pool);
}

}  // namespace

void run_cuda(const SpanMass& a, CudaContext& cuda) {
  if (a.num_pools == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t rows = std::int64_t{a.num_pools} * a.rows_per_pool;
  SpanMass on_gpu = a;
  std::tie(on_gpu.first, on_gpu.head_end, on_gpu.tail_begin, on_gpu.tail_end) = upload_all(
      cuda, host_array(a.first, rows + 1), host_array(a.head_end, rows), host_array(a.tail_begin, rows), host_array(a.tail_end, rows));
  launch("span_mass", cuda, block_each(a.num_pools), mass_of_pools, on_gpu);
}

}  // namespace kvlab
