#include <algorithm>

#include "kernels/anchor_cosine/anchor_cosine.h"
#include "kernels/cuda/token_sums.cuh"
#include "kernels/cuda/upload.h"

namespace kvlab {

namespace {

constexpr float kLeastNorm = 1e-8F;
constexpr int kWarps = kTokenThreads / kWarpSize;

// partial [rows, chunks, head_dim]: sums of the normalised keys of a chunk of the anchor's tokens.
template <class T, int Lanes, int Spans, bool Wide>
__global__ void __launch_bounds__(kTokenThreads)
    add_unit_keys(DeviceRows kv, const std::int32_t* begin, const std::int32_t* end, TokenSumsShape shape, float* partial) {
  constexpr int kGroups = kWarpSize / Lanes;
  KVLAB_SHARED(float, sums, kWarps* kMostTokenDim);
  const int row = blockIdx.x / shape.chunks, d = kv.head_dim, lane = lane_index() % Lanes, group = lane_index() / Lanes;
  const std::int32_t first = begin[row] + static_cast<std::int32_t>(blockIdx.x % shape.chunks) * kTokenChunk;
  const std::int32_t last = min(end[row], first + kTokenChunk);
  const TokenPlaces places(kv, row);
  float mine[Spans][8] = {};
  for (std::int32_t at = first + warp_index() * kGroups; at < last; at += kWarps * kGroups) {
    const std::int32_t token = at + group;
    const std::int64_t slot = places(min(token, last - 1));
    float x[Spans][8], squares = 0;
#pragma unroll
    for (int s = 0; s < Spans; ++s) {
      const int channel = (s * Lanes + lane) * 8;
      unpack_raw8(load_raw8<T, Wide>(static_cast<const T*>(kv.k) + slot * d + channel, token < last ? d - channel : 0), x[s]);
#pragma unroll
      for (int c = 0; c < 8; ++c) squares += x[s][c] * x[s][c];
    }
#pragma unroll
    for (int offset = Lanes / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(kAllLanes, squares, offset);
    const float scale = 1.0F / fmaxf(sqrtf(squares), kLeastNorm);
#pragma unroll
    for (int s = 0; s < Spans; ++s)
#pragma unroll
      for (int c = 0; c < 8; ++c) mine[s][c] += x[s][c] * scale;
  }
#pragma unroll
  for (int s = 0; s < Spans; ++s) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
#pragma unroll
      for (int offset = Lanes; offset < kWarpSize; offset *= 2) mine[s][c] += __shfl_xor_sync(kAllLanes, mine[s][c], offset);
      if (group == 0) sums[warp_index() * kMostTokenDim + (s * Lanes + lane) * 8 + c] = mine[s][c];
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < d; c += kTokenThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sums[w * kMostTokenDim + c];
    partial[std::int64_t{blockIdx.x} * d + c] = sum;
  }
}

// anchor [rows, head_dim] and the factor of each row.
__global__ void __launch_bounds__(kTokenThreads) finish_anchor(const float* partial, const std::int32_t* begin, const std::int32_t* end,
                                                               int chunks, int d, bool cosine, float factor, float* anchor, float* scale) {
  KVLAB_SHARED(float, shared, 33);
  const int row = blockIdx.x;
  const double count = max(1, end[row] - begin[row]);
  float squares = 0;
  for (int c = threadIdx.x; c < d; c += kTokenThreads) {
    double sum = 0;
    for (int i = 0; i < chunks; ++i) sum += static_cast<double>(partial[(std::int64_t{row} * chunks + i) * d + c]);
    const auto x = static_cast<float>(sum / count);
    anchor[std::int64_t{row} * d + c] = x;
    squares += x * x;
  }
  squares = block_sum(squares, shared);
  if (threadIdx.x == 0) scale[row] = factor / (cosine ? fmaxf(sqrtf(squares), kLeastNorm) : 1.0F);
}

struct Cosine {
  static constexpr int kSums = 2, kVectors = 1;
  const std::int32_t* len;
  const std::int64_t* first;
  const float *anchor, *scale;
  std::int32_t head_dim;
  float* out;
  __device__ std::int32_t begin(int) const { return 0; }
  __device__ std::int32_t end(int row) const { return len[row]; }
  __device__ const float* vector(int row, int) const { return anchor + std::int64_t{row} * head_dim; }
  __device__ void add(float (&sum)[2], float x, const float (&y)[1]) const { sum[0] += x * y[0], sum[1] += x * x; }
  __device__ void finish(int row, std::int32_t token, const float (&sum)[2]) const {
    out[first[row] + token] = scale[row] * sum[0] / fmaxf(sqrtf(sum[1]), kLeastNorm);
  }
};

}  // namespace

void run_cuda(const AnchorCosine& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const auto [begin, end] = upload_all(cuda, host_array(a.begin, kv.num_rows), host_array(a.end, kv.num_rows));
  std::int64_t longest = 1;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) longest = std::max<std::int64_t>(longest, a.end[r] - a.begin[r]);
  const TokenSumsShape shape{false, static_cast<int>(ceil_div(longest, kTokenChunk))};
  const std::int64_t blocks = std::int64_t{kv.num_rows} * shape.chunks;
  float *const partial = cuda.scratch<float>(blocks * kv.head_dim),
               *const anchor = cuda.scratch<float>(std::int64_t{kv.num_rows} * kv.head_dim),
               *const scale = cuda.scratch<float>(kv.num_rows);
  for_token_lanes("anchor_cosine", kv, [&](auto lanes, auto spans, auto wide) {
    for_type(a.kv.type, [&](auto zero) {
      launch("anchor_cosine", cuda, {dim3(static_cast<unsigned>(blocks)), dim3(kTokenThreads)},
             add_unit_keys<decltype(zero), decltype(lanes)::value, decltype(spans)::value, decltype(wide)::value>, kv, begin, end, shape,
             partial);
    });
  });
  launch("anchor_cosine", cuda, {dim3(static_cast<unsigned>(kv.num_rows)), dim3(kTokenThreads)}, finish_anchor, partial, begin, end,
         shape.chunks, kv.head_dim, a.cosine, a.factor, anchor, scale);
  launch_token_sums("anchor_cosine", cuda, kv, a.kv.type, false, kv.longest, Cosine{kv.len, kv.first, anchor, scale, kv.head_dim, a.out});
}

}  // namespace kvlab
