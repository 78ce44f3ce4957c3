#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/scorer/key_redundancy/key_redundancy.h"

namespace kvlab {

namespace {

struct Likeness {
  DeviceRows kv;
  float similar;
  float* norm;           // [total]
  std::int32_t* newest;  // [total] of line j the token that does not count
  double* mean;          // [total]
  float* out;

  // A row has kv.longest of them.
  __device__ int row(std::int64_t item) const { return static_cast<int>(item / kv.longest); }
  __device__ std::int32_t token(std::int64_t item) const { return static_cast<std::int32_t>(item % kv.longest); }
  // By a whole warp.
  template <class T>
  __device__ float cosine(int row, std::int32_t j, std::int32_t i) const {
    const float* const norms = norm + kv.first[row];
    return j == i ? 0.0F : warp_dot(key_at<T>(kv, row, j), key_at<T>(kv, row, i), kv.head_dim) / norms[j] / norms[i];
  }
};

// A warp per token.
template <class T>
__global__ void __launch_bounds__(kRowThreads) norms_of_keys(Likeness a, std::int64_t items) {
  const std::int64_t item = warp_item();
  if (item >= items || a.token(item) >= a.kv.len[a.row(item)]) return;
  const T* const key = key_at<T>(a.kv, a.row(item), a.token(item));
  const float norm = sqrtf(warp_dot(key, key, a.kv.head_dim)) + 1e-8F;
  if (lane_index() == 0) a.norm[a.kv.first[a.row(item)] + a.token(item)] = norm;
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) find_newest(Likeness a, std::int64_t items) {
  const std::int64_t item = warp_item();
  if (item >= items || a.token(item) >= a.kv.len[a.row(item)]) return;
  std::int32_t newest = a.kv.len[a.row(item)] - 1;
  while (newest > 0 && !(a.cosine<T>(a.row(item), a.token(item), newest) > a.similar)) --newest;
  if (lane_index() == 0) a.newest[a.kv.first[a.row(item)] + a.token(item)] = newest;
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) mean_columns(Likeness a, std::int64_t items) {
  const std::int64_t item = warp_item();
  const int row = a.row(item);
  const std::int32_t i = a.token(item);
  if (item >= items || i >= a.kv.len[row]) return;
  double sum = 0;
  for (std::int32_t j = 0; j < a.kv.len[row]; ++j)
    if (a.newest[a.kv.first[row] + j] != i) sum += static_cast<double>(a.cosine<T>(row, j, i));
  if (lane_index() == 0) a.mean[a.kv.first[row] + i] = sum / a.kv.len[row];
}

// A block per row.
__global__ void __launch_bounds__(kRowThreads) soften(Likeness a) {
  KVLAB_SHARED(double, shared, 33);
  const std::int64_t first = a.kv.first[blockIdx.x], n = a.kv.len[blockIdx.x];
  double top = -static_cast<double>(INFINITY), sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads) top = fmax(top, a.mean[first + i]);
  top = block_reduce(top, -static_cast<double>(INFINITY), shared, [](double x, double y) { return fmax(x, y); });
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads) sum += exp(a.mean[first + i] - top);
  sum = block_sum(sum, shared);
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads) a.out[first + i] = static_cast<float>(exp(a.mean[first + i] - top) / sum);
}

}  // namespace

void run_cuda(const KeyRedundancy& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const Likeness like{kv,   a.similar, cuda.scratch<float>(kv.total), cuda.scratch<std::int32_t>(kv.total), cuda.scratch<double>(kv.total),
                      a.out};
  const std::int64_t items = std::int64_t{kv.num_rows} * kv.longest;
  for_type(a.kv.type, [&](auto zero) {
    using T = decltype(zero);
    launch("key_redundancy", cuda, warp_each(items), norms_of_keys<T>, like, items);
    launch("key_redundancy", cuda, warp_each(items), find_newest<T>, like, items);
    launch("key_redundancy", cuda, warp_each(items), mean_columns<T>, like, items);
  });
  launch("key_redundancy", cuda, block_each(kv.num_rows), soften, like);
}

}  // namespace kvlab
