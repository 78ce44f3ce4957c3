#include <limits>

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/ordered_key.cuh"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/score/protect/protect.h"

namespace kvlab {

namespace {

struct Set {
  DeviceRows kv;
  const std::int32_t *begin, *end;
  bool inside;
  float value;
  std::uint32_t* top;  // [sequences] largest key of the other tokens, 0 if all stay; null without above_max
  float* scores;

  __device__ std::int64_t count(int row) const { return kv.len[row]; }
  __device__ bool stays(int row, std::int64_t i) const {
    const int s = row / kv.kv_heads;
    const std::int32_t position = kv.position[kv.slot(row, static_cast<std::int32_t>(i))];
    return (position >= begin[s] && position < end[s]) == inside;
  }
  __device__ void operator()(int row, std::int64_t i) const {
    if (!stays(row, i)) return;
    float x = value;
    if (top != nullptr) {
      const std::uint32_t key = top[row / kv.kv_heads];
      x = key <= ordered_key(-std::numeric_limits<float>::infinity()) ? 1.0F : float_of_key(key) + 1.0F;
    }
    scores[kv.first[row] + i] = x;
  }
};

__global__ void __launch_bounds__(kOverRowsThreads) find_top(Set a, int chunks) {
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

}  // namespace

void run_cuda(const Protect& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t sequences = a.kv.num_sequences();
  const auto [begin, end] = upload_all(cuda, host_array(a.begin, sequences), host_array(a.end, sequences));
  Set set{on_device(a.kv, cuda), begin, end, a.inside, a.value, nullptr, a.scores};
  if (a.above_max) {
    set.top = cuda.scratch<std::uint32_t>(sequences);
    cuda::fill(set.top, 0, 4 * sequences, cuda.stream());
    const std::int64_t chunks = ceil_div(set.kv.longest, kOverRowsChunk);
    launch("protect", cuda, {dim3(static_cast<unsigned>(a.kv.num_rows * chunks)), dim3(kOverRowsThreads)}, find_top, set,
           static_cast<int>(chunks));
  }
  launch_over_rows("protect", cuda, a.kv.num_rows, set.kv.longest, set);
}

}  // namespace kvlab
