#include <limits>

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/ordered_key.cuh"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/score/protect_above_max/protect_above_max.h"

namespace kvlab {

namespace {

struct Above {
  DeviceRows kv;
  std::int32_t sinks, recent;
  const std::int32_t* end_position;
  std::uint32_t* top;  // [sequences] largest key of those that need not stay, 0 where all stay
  float* scores;

  __device__ std::int64_t count(int row) const { return kv.len[row]; }
  __device__ bool stays(int row, std::int64_t i) const {
    const std::int32_t position = kv.position[kv.slot(row, static_cast<std::int32_t>(i))];
    return position < sinks || position >= end_position[row / kv.kv_heads] - recent;
  }
};

__global__ void __launch_bounds__(kOverRowsThreads) find_top(Above a, int chunks) {
  const int row = blockIdx.x / chunks;
  const std::int64_t n = a.count(row), begin = std::int64_t{blockIdx.x % chunks} * kOverRowsChunk + threadIdx.x;
  std::uint32_t top = 0;
#pragma unroll
  for (int j = 0; j < kOverRowsEach; ++j) {
    const std::int64_t i = begin + j * kOverRowsThreads;
    if (i < n && !a.stays(row, i)) top = max(top, ordered_key(a.scores[a.kv.first[row] + i]));
  }
  top = warp_max(top);
  if (lane_index() == 0 && top != 0) atomicMax(&a.top[row / a.kv.kv_heads], top);
}

struct SetAbove : Above {
  __device__ void operator()(int row, std::int64_t i) const {
    if (!stays(row, i)) return;
    const std::uint32_t key = top[row / kv.kv_heads];
    scores[kv.first[row] + i] = key <= ordered_key(-std::numeric_limits<float>::infinity()) ? 1.0F : float_of_key(key) + 1.0F;
  }
};

}  // namespace

void run_cuda(const ProtectAboveMax& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t sequences = a.kv.num_sequences();
  auto* const top = cuda.scratch<std::uint32_t>(sequences);
  cuda::fill(top, 0, 4 * sequences, cuda.stream());
  const Above above{on_device(a.kv, cuda), a.sinks, a.recent, cuda.upload(a.end_position, sequences), top, a.scores};
  const std::int64_t chunks = ceil_div(above.kv.longest, kOverRowsChunk);
  launch("protect_above_max", cuda, {dim3(static_cast<unsigned>(a.kv.num_rows * chunks)), dim3(kOverRowsThreads)}, find_top, above,
         static_cast<int>(chunks));
  launch_over_rows("protect_above_max", cuda, a.kv.num_rows, above.kv.longest, SetAbove{above});
}

}  // namespace kvlab
