#pragma once

#include "kernels/device/cuda/token_walk.cuh"

namespace kvlab {

struct TokenSumsShape {
  bool values = false;  // V, not K
  int chunks = 0;       // per row
};

// Zeros beyond the last channel.
template <int Lanes, int Spans, int Vectors, class F>
__device__ __forceinline__ void load_row_vectors(const F& f, int row, int d, float (&y)[Spans][8][Vectors]) {
#pragma unroll
  for (int s = 0; s < Spans; ++s) {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const float* from = F::kVectors > 0 ? f.vector(row, v) : nullptr;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const int channel = (s * Lanes + lane_index() % Lanes) * 8 + c;
        y[s][c][v] = from != nullptr && channel < d ? from[channel] : 0.0F;
      }
    }
  }
}

// Sums over the channels of keys or values. F:
//   kSums, kVectors              sums per token, vectors per row
//   begin(row), end(row)         tokens
//   vector(row, v)               [head_dim] float, or null: zeros
//   add(sums, x, y[kVectors])    one channel
//   finish(row, token, sums)     once per token
template <class T, int Lanes, int Spans, bool Wide, class F>
__global__ void __launch_bounds__(kTokenThreads, 2) token_sums(F f, DeviceRows kv, TokenSumsShape shape) {
  using Walk = TokenWalk<T, Lanes, Spans, Wide>;
  const int row = blockIdx.x / shape.chunks;
  const std::int32_t end = f.end(row), first = f.begin(row) + static_cast<std::int32_t>(blockIdx.x % shape.chunks) * kTokenChunk;
  if (first >= end) return;
  const TokenPlaces places(kv, row);
  const Walk walk(kv, shape.values);
  float y[Spans][8][F::kVectors > 0 ? F::kVectors : 1];
  load_row_vectors<Lanes>(f, row, kv.head_dim, y);
  const std::int32_t last = min(end, first + kTokenChunk);
  walk.template run<false>(first + warp_index() * Walk::kStep, last, kTokenThreads / kWarpSize * Walk::kStep, places,
                           [&](std::int32_t token, const float(&x)[Spans][8]) {
                             float sums[F::kSums] = {};
#pragma unroll
                             for (int s = 0; s < Spans; ++s)
#pragma unroll
                               for (int c = 0; c < 8; ++c) f.add(sums, x[s][c], y[s][c]);
#pragma unroll
                             for (int i = 0; i < F::kSums; ++i) sums[i] = sum_of_lanes<Lanes>(sums[i]);
                             if (walk.lane == 0 && token < last) f.finish(row, token, sums);
                           });
}

// `longest`: largest end - begin.
template <class F>
void launch_token_sums(const char* name, CudaContext& cuda, const DeviceRows& kv, ElementType type, bool values, std::int64_t longest,
                       const F& f) {
  const TokenSumsShape shape{values, static_cast<int>(ceil_div(longest, kTokenChunk))};
  for_token_lanes(name, kv, [&](auto lanes, auto spans, auto wide) {
    for_type(type, [&](auto zero) {
      launch(name, cuda, blocks_of(std::int64_t{kv.num_rows} * shape.chunks, kTokenThreads),
             token_sums<decltype(zero), decltype(lanes)::value, decltype(spans)::value, decltype(wide)::value, F>, f, kv, shape);
    });
  });
}

}  // namespace kvlab
