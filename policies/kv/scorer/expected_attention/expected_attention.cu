#include <cmath>

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/tile_product.cuh"
#include "kernels/select/page_scores/page_scores.h"
#include "policies/kv/scorer/expected_attention/expected_attention.h"

namespace kvlab {

namespace {

struct Logits {
  DeviceRows kv;
  const float *mean, *covariance;  // covariance null: not used
  std::int32_t sinks;
  float of_mean, of_square;  // factors
  float* z;                  // row r, head g from group * first[r] + g * len[r] on
  int blocks;                // per row
};

// A tile of 64 keys of a row for one query head: k . (covariance k / (2 d) + mean / sqrt(d)), 64 columns of the covariance at a time. Lines
// of the covariance serve as columns: the quadratic form is that of the transpose too.
template <class T>
__global__ void __launch_bounds__(kTileThreads, 2) expected_logits(Logits a) {
  KVLAB_SHARED(float4, shared, kTileFloats / 4);
  KVLAB_SHARED(std::int64_t, slot, kTileSide);
  const int row = blockIdx.x / a.blocks, d = a.kv.head_dim, head = blockIdx.y;
  const std::int32_t first = blockIdx.x % a.blocks * kTileSide, n = a.kv.len[row];
  if (first >= n) return;
  if (threadIdx.x < kTileSide) slot[threadIdx.x] = a.kv.slot(row, min(first + static_cast<std::int32_t>(threadIdx.x), n - 1));
  __syncthreads();
  const T* const keys = static_cast<const T*>(a.kv.k);
  const std::int64_t of_head = std::int64_t{row} * a.kv.group + head;
  const float *const mean = a.mean + of_head * d, *const lines = a.covariance + of_head * d * d;
  const int row0 = static_cast<int>(threadIdx.x) / 16 * 4, column0 = static_cast<int>(threadIdx.x) % 16 * 4;
  float logit[4] = {};
  for (int c0 = 0; c0 < d; c0 += kTileSide) {
    float z[4][4] = {};
    if (a.covariance != nullptr)
      add_tile_product<false>(
          z, d, shared, [&](int i, int k) { return load_float(keys + slot[i] * d + k); },
          [&](int i, int k) { return c0 + i < d ? lines[std::int64_t{c0 + i} * d + k] : 0.0F; });
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int c = c0 + column0 + j;
      if (c >= d) continue;
      const float m = a.of_mean * mean[c];
#pragma unroll
      for (int i = 0; i < 4; ++i) logit[i] += load_float(keys + slot[row0 + i] * d + c) * (a.of_square * z[i][j] + m);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) logit[i] += __shfl_xor_sync(kAllLanes, logit[i], offset);
    const std::int32_t token = first + row0 + i;
    if (column0 == 0 && token < n)
      a.z[a.kv.group * a.kv.first[row] + std::int64_t{head} * n + token] = a.kv.position[slot[row0 + i]] >= a.sinks ? logit[i] : -INFINITY;
  }
}

}  // namespace

void run_cuda(const ExpectedAttention& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto d = static_cast<float>(a.kv.head_dim);
  const DeviceRows kv = on_device(a.kv, cuda);
  const Logits logits{kv,
                      a.mean,
                      a.uses_covariance ? a.covariance : nullptr,
                      a.sinks,
                      1.0F / std::sqrt(d),
                      0.5F / d,
                      cuda.scratch<float>(kv.group * kv.total),
                      static_cast<int>(ceil_div(kv.longest, kTileSide))};
  const dim3 grid(static_cast<unsigned>(std::int64_t{kv.num_rows} * logits.blocks), static_cast<unsigned>(kv.group));
  for_type(a.kv.type, [&](auto zero) {
    launch("expected_attention", cuda, {grid, dim3(kTileThreads)}, expected_logits<decltype(zero)>, logits);
  });
  std::vector<SoftmaxRow> rows;
  for (std::int32_t r = 0; r < kv.num_rows; ++r)
    rows.push_back({logits.z + kv.group * a.kv.first[r], a.out + a.kv.first[r], nullptr, nullptr, a.kv.len[r]});
  soften_rows("expected_attention", rows, kv.group, UnitScores::Heads::kMean, cuda);
}

}  // namespace kvlab
