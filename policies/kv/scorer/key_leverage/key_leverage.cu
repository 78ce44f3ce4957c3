#include <cmath>

#include "base/random.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/scorer/key_leverage/key_leverage.h"
#include "policies/kv/scorer/key_leverage/leverage.h"

namespace kvlab {

namespace {

constexpr int kWarps = kRowThreads / kWarpSize;

struct Sketch {
  DeviceRows kv;
  const float* const* keys;  // [num_sequences]
  const double* matrix;      // [head_dim, features], null: the identity
  std::int32_t features;
  double *mean, *x;  // [num_rows, head_dim]; [features, len] of row r from features * first[r] on
  const double* leverage;
  float* out;
  int chunks;

  __device__ const float* key(int row, std::int32_t i) const {
    const std::int64_t position = kv.position[kv.slot(row, i)];
    return keys[row / kv.kv_heads] + (position * kv.kv_heads + row % kv.kv_heads) * kv.head_dim;
  }
};

// A block per row and 32 channels.
__global__ void __launch_bounds__(kRowThreads) mean_of_keys(Sketch a) {
  KVLAB_SHARED(double, shared, kRowThreads);
  const int row = blockIdx.x / a.chunks, c = blockIdx.x % a.chunks * kWarpSize + lane_index(), n = a.kv.len[row];
  double sum = 0;
  for (int i = warp_index(); i < n && c < a.kv.head_dim; i += kWarps) sum += a.key(row, i)[c];
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (warp_index() != 0 || c >= a.kv.head_dim || n == 0) return;
  for (int w = 1; w < kWarps; ++w) sum += shared[w * kWarpSize + lane_index()];
  a.mean[std::int64_t{row} * a.kv.head_dim + c] = sum / n;
}

struct Features {
  Sketch a;
  __device__ std::int64_t count(int row) const { return std::int64_t{a.kv.len[row]} * a.features; }
  __device__ void operator()(int row, std::int64_t at) const {
    const std::int64_t n = a.kv.len[row], j = at / n;
    const float* const key = a.key(row, static_cast<std::int32_t>(at % n));
    const double* const mean = a.mean + std::int64_t{row} * a.kv.head_dim;
    double x = 0;
    if (a.matrix == nullptr)
      x = key[j] - mean[j];
    else
      for (std::int64_t c = 0; c < a.kv.head_dim; ++c) x += (key[c] - mean[c]) * a.matrix[c * a.features + j];
    a.x[a.features * a.kv.first[row] + at] = x;
  }
};

struct PutLeverage {
  const double* leverage;
  float* out;
  std::int64_t total;
  __device__ std::int64_t count(int) const { return total; }
  __device__ void operator()(int, std::int64_t i) const { out[i] = static_cast<float>(leverage[i]); }
};

}  // namespace

void run_cuda(const KeyLeverage& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int32_t d = a.kv.head_dim, rows = a.kv.num_rows;
  std::vector<double> matrix;
  for (std::int32_t i = 0; i < d; ++i)
    for (std::int32_t j = 0; j < a.sketch_dim; ++j)
      matrix.push_back(Draw{a.seed, Purpose::kPolicy, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(j)}.normal() /
                       std::sqrt(a.sketch_dim));
  Sketch s{};
  s.kv = on_device(a.kv, cuda), s.keys = cuda.upload(a.keys, a.kv.num_sequences());
  s.features = a.sketch_dim > 0 ? a.sketch_dim : d;
  s.matrix = a.sketch_dim > 0 ? cuda.upload(matrix.data(), static_cast<std::int64_t>(matrix.size())) : nullptr;
  s.mean = cuda.scratch<double>(std::int64_t{rows} * d), s.x = cuda.scratch<double>(s.features * s.kv.total);
  s.chunks = static_cast<int>(ceil_div(d, kWarpSize));
  launch("key_leverage", cuda, block_each(std::int64_t{rows} * s.chunks), mean_of_keys, s);
  launch_over_rows("key_leverage", cuda, rows, std::int64_t{s.kv.longest} * s.features, Features{s});
  double* const out = cuda.scratch<double>(s.kv.total);
  std::vector<LeverageItem> items;
  for (std::int32_t r = 0; r < rows; ++r) items.push_back({s.x + s.features * a.kv.first[r], nullptr, out + a.kv.first[r], a.kv.len[r]});
  leverage("key_leverage", items, s.features, false, cuda);
  launch_over_rows("key_leverage", cuda, 1, s.kv.total, PutLeverage{out, a.out, s.kv.total});
}

}  // namespace kvlab
