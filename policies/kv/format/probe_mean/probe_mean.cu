#include <algorithm>

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/leading_mass.cuh"
#include "kernels/device/cuda/ordered_key.cuh"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/sort_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/format/probe_mean/probe_mean.h"

namespace kvlab {

namespace {

struct FillMass {
  DeviceRows kv;
  std::int32_t channel;
  const std::int64_t* first;
  const std::int32_t* index;
  std::uint32_t* keys;
  std::int64_t width;
  __device__ std::int64_t count(int) const { return width; }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int32_t token = i < first[row + 1] - first[row] ? index[first[row] + i] : -1;
    keys[row * width + i] = token < 0 ? 0U : ordered_key(__uint_as_float(kv.words[channel * kv.pool_tokens + kv.slot(row, token)]));
  }
};

__global__ void __launch_bounds__(kMassThreads) cover_mass(std::uint32_t* keys, std::int64_t width, double share, std::int32_t* count) {
  KVLAB_SHARED(double, sums, kMassThreads + 1);
  KVLAB_SHARED(std::int32_t, shared, 33);
  KVLAB_SHARED(std::int32_t, found, 1);
  std::uint32_t* const mine = keys + blockIdx.x * width;
  std::int32_t listed = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += kMassThreads) {
    if (mine[i] == 0) continue;
    mine[i] = __float_as_uint(float_of_key(mine[i]));
    ++listed;
  }
  listed = block_sum(listed, shared);
  const std::int32_t counted = leading_mass(reinterpret_cast<const float*>(mine), listed, share, sums, found);
  if (threadIdx.x == 0) count[blockIdx.x] = counted;
}

}  // namespace

void run_cuda(const ProbeSums& a, CudaContext& cuda) {
  for_each_piece(a, [&](const TokenStats& stats) { run_cuda(stats, cuda); });
}

void run_cuda(const CoverMass& a, CudaContext& cuda) {
  const std::int64_t rows = a.kv.num_rows, longest = longest_row(a.first, rows);
  std::fill_n(a.count, rows, 0);
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t width = sort_width(longest);
  auto* const keys = cuda.scratch<std::uint32_t>(rows * width);
  auto* const count = cuda.scratch<std::int32_t>(rows);
  launch_over_rows("cover_mass", cuda, rows, width,
                   FillMass{on_device(a.kv, cuda), a.channel, cuda.upload(a.first, rows + 1), a.index, keys, width});
  sort_rows("cover_mass", cuda, keys, rows, width);
  launch("cover_mass", cuda, {dim3(static_cast<unsigned>(rows)), dim3(kMassThreads)}, cover_mass, keys, width, a.share, count);
  cuda::to_host(a.count, count, 4 * rows, cuda.stream());
  cuda.synchronize();
}

}  // namespace kvlab
