#pragma once

#include "kernels/device/cuda/token_sums.cuh"

namespace kvlab {

template <int Spans>
__device__ __forceinline__ float sum_of_squares(const float (&x)[Spans][8]) {
  float squares = 0;
#pragma unroll
  for (int s = 0; s < Spans; ++s)
#pragma unroll
    for (int c = 0; c < 8; ++c) squares += x[s][c] * x[s][c];
  return squares;
}

// partial [rows, chunks, head_dim]: sums over kTokenChunk listed tokens, in fp32 and one order. F:
//   count(row)          entries
//   token(row, i)       its entry i
//   scale(squares)      factor by the sum of squares; kScales: if not always 1
template <class T, int Lanes, int Spans, bool Wide, class F>
__global__ void __launch_bounds__(kTokenThreads, 2) add_listed(F f, DeviceRows kv, TokenSumsShape shape, float* partial) {
  using Walk = TokenWalk<T, Lanes, Spans, Wide>;
  constexpr int kWarps = kTokenThreads / kWarpSize;
  KVLAB_SHARED(float, sums, kWarps* kMostTokenDim);
  const int row = blockIdx.x / shape.chunks, d = kv.head_dim;
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x % shape.chunks) * kTokenChunk,
                     last = min(f.count(row), first + kTokenChunk);
  const TokenPlaces places(kv, row);
  const Walk walk(kv, shape.values);
  float mine[Spans][8] = {};
  walk.template run<true>(
      first + warp_index() * Walk::kStep, last, kWarps * Walk::kStep, [&](std::int32_t i) { return places(f.token(row, i)); },
      [&](std::int32_t, const float(&x)[Spans][8]) {
        float scale = 1.0F;
        if constexpr (F::kScales) scale = f.scale(sum_of_lanes<Lanes>(sum_of_squares(x)));
#pragma unroll
        for (int s = 0; s < Spans; ++s)
#pragma unroll
          for (int c = 0; c < 8; ++c) mine[s][c] += F::kScales ? x[s][c] * scale : x[s][c];
      });
#pragma unroll
  for (int s = 0; s < Spans; ++s) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float sum = sum_of_groups<Lanes>(mine[s][c]);
      if (walk.group == 0) sums[warp_index() * kMostTokenDim + walk.channel(s) + c] = sum;
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < d; c += kTokenThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sums[w * kMostTokenDim + c];
    partial[std::int64_t{blockIdx.x} * d + c] = sum;
  }
}

// In the current Frame; `chunks` = ceil(longest list / kTokenChunk), at least 1.
template <class F>
float* launch_listed_sums(const char* name, CudaContext& cuda, const DeviceRows& kv, ElementType type, bool values, int chunks,
                          const F& f) {
  const std::int64_t blocks = std::int64_t{kv.num_rows} * chunks;
  float* const partial = cuda.scratch<float>(blocks * kv.head_dim);
  for_token_lanes(name, kv, [&](auto lanes, auto spans, auto wide) {
    for_type(type, [&](auto zero) {
      launch(name, cuda, {dim3(static_cast<unsigned>(blocks)), dim3(kTokenThreads)},
             add_listed<decltype(zero), decltype(lanes)::value, decltype(spans)::value, decltype(wide)::value, F>, f, kv,
             TokenSumsShape{values, chunks}, partial);
    });
  });
  return partial;
}

}  // namespace kvlab
