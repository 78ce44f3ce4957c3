#pragma once

#include "kernels/device/cuda/token_walk.cuh"

namespace kvlab {

// Reduces channels over runs of neighbouring tokens, a warp per run. F:
//   kNumbers                       per channel
//   units(row)                     runs of the row
//   begin(row, u), end(row, u)     tokens of run u, at least one
//   start(x)                       neutral numbers
//   add(x, k), join(x, y)          an element; other tokens' numbers
//   finish(row, u, channel, x, n)  n of eight channels from `channel` on, x[number][channel]
constexpr int kFoldWarps = kTokenThreads / kWarpSize;

// Transposed to out[number][channel].
template <int Lanes, class F>
__device__ __forceinline__ void join_groups(const F& f, float (&x)[8][F::kNumbers], float (&out)[F::kNumbers][8]) {
#pragma unroll
  for (int c = 0; c < 8; ++c) {
#pragma unroll
    for (int offset = Lanes; offset < kWarpSize; offset *= 2) {
      float other[F::kNumbers];
#pragma unroll
      for (int i = 0; i < F::kNumbers; ++i) other[i] = __shfl_xor_sync(kAllLanes, x[c][i], offset);
      f.join(x[c], other);
    }
#pragma unroll
    for (int i = 0; i < F::kNumbers; ++i) out[i][c] = x[c][i];
  }
}

template <class T, int Lanes, int Spans, bool Wide, class F>
__global__ void __launch_bounds__(kTokenThreads, 2) token_folds(F f, DeviceRows kv, int chunks) {
  using Walk = TokenWalk<T, Lanes, Spans, Wide>;
  const int row = blockIdx.x / chunks, unit = blockIdx.x % chunks * kFoldWarps + warp_index(), d = kv.head_dim;
  if (unit >= f.units(row)) return;
  const TokenPlaces places(kv, row);
  const Walk walk(kv, false);
  const std::int32_t begin = f.begin(row, unit), end = f.end(row, unit);
  float x[Spans][8][F::kNumbers];
#pragma unroll
  for (int s = 0; s < Spans; ++s)
#pragma unroll
    for (int c = 0; c < 8; ++c) f.start(x[s][c]);
  walk.template run<false>(begin, end, Walk::kStep, places, [&](std::int32_t token, const float(&k)[Spans][8]) {
    if (token >= end) return;
#pragma unroll
    for (int s = 0; s < Spans; ++s)
#pragma unroll
      for (int c = 0; c < 8; ++c) f.add(x[s][c], k[s][c]);
  });
#pragma unroll
  for (int s = 0; s < Spans; ++s) {
    float out[F::kNumbers][8];
    join_groups<Lanes>(f, x[s], out);
    const int channel = walk.channel(s);
    if (walk.group == 0 && channel < d) f.finish(row, unit, channel, out, min(8, d - channel));
  }
}

// 16 bytes at a time if aligned.
__device__ __forceinline__ void store_up_to8(float* p, const float (&x)[8], int n) {
  if (n == 8 && reinterpret_cast<std::uintptr_t>(p) % 16 == 0) {
    store8(p, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < n) p[i] = x[i];
}

// `most`: largest number of units of a row.
template <class F>
void launch_token_folds(const char* name, CudaContext& cuda, const DeviceRows& kv, ElementType type, std::int64_t most, const F& f) {
  const auto chunks = static_cast<int>(ceil_div(most, kFoldWarps));
  for_token_lanes(name, kv, [&](auto lanes, auto spans, auto wide) {
    for_type(type, [&](auto zero) {
      launch(name, cuda, {dim3(static_cast<unsigned>(std::int64_t{kv.num_rows} * chunks)), dim3(kTokenThreads)},
             token_folds<decltype(zero), decltype(lanes)::value, decltype(spans)::value, decltype(wide)::value, F>, f, kv, chunks);
    });
  });
}

}  // namespace kvlab
