#include "kernels/device/cuda/over_rows.cuh"
#include "policies/kv/selector/sum_rows/sum_rows.h"

namespace kvlab {

namespace {

struct Sum {
  const std::int64_t* first;
  std::int32_t rows_per_pool;
  float* scores;
  __device__ std::int64_t units(int row) const { return first[row + 1] - first[row]; }
  __device__ std::int64_t count(int pool) const {
    std::int64_t most = 0;
    for (int r = pool * rows_per_pool; r < (pool + 1) * rows_per_pool; ++r) most = max(most, units(r));
    return most;
  }
  __device__ void operator()(int pool, std::int64_t i) const {
    float sum = 0.0F;
    for (int r = pool * rows_per_pool; r < (pool + 1) * rows_per_pool; ++r)
      if (i < units(r)) sum += scores[first[r] + i];
    for (int r = pool * rows_per_pool; r < (pool + 1) * rows_per_pool; ++r)
      if (i < units(r)) scores[first[r] + i] = sum;
  }
};

}  // namespace

void run_cuda(const SumRows& a, CudaContext& cuda) {
  if (a.num_rows == 0 || a.first[a.num_rows] == 0) return;
  const CudaContext::Frame frame(cuda);
  launch_over_rows("sum_rows", cuda, a.num_rows / a.rows_per_pool, longest_row(a.first, a.num_rows),
                   Sum{cuda.upload(a.first, a.num_rows + 1), a.rows_per_pool, a.scores});
}

}  // namespace kvlab
