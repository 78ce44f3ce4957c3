#pragma once

#include "kernels/device/cuda/token_sums.cuh"

namespace kvlab {

// partial [rows, chunks, head_dim]: sums over kTokenChunk tokens of a list. Adds in fp32 within a chunk, in one order. F:
//   count(row)          entries of the row's list
//   token(row, i)       its entry i
//   scale(squares)      what the vector is multiplied with, by the sum of its squares; kScales: whether it is anything but 1
template <class T, int Lanes, int Spans, bool Wide, class F>
__global__ void __launch_bounds__(kTokenThreads, 2) add_listed(F f, DeviceRows kv, TokenSumsShape shape, float* partial) {
  constexpr int kGroups = kWarpSize / Lanes, kWarps = kTokenThreads / kWarpSize;
  KVLAB_SHARED(float, sums, kWarps* kMostTokenDim);
  const int row = blockIdx.x / shape.chunks, d = kv.head_dim, lane = lane_index() % Lanes, group = lane_index() / Lanes;
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x % shape.chunks) * kTokenChunk,
                     last = min(f.count(row), first + kTokenChunk);
  const TokenPlaces places(kv, row);
  const T* const data = static_cast<const T*>(shape.values ? kv.v : kv.k);
  float mine[Spans][8] = {};
  for (std::int32_t at = first + warp_index() * kGroups * kTokensInFlight; at < last; at += kWarps * kGroups * kTokensInFlight) {
    std::int64_t slot[kTokensInFlight];
    Raw8<T> raw[kTokensInFlight][Spans];
#pragma unroll
    for (int t = 0; t < kTokensInFlight; ++t) slot[t] = places(f.token(row, min(at + t * kGroups + group, last - 1)));
#pragma unroll
    for (int t = 0; t < kTokensInFlight; ++t) {
#pragma unroll
      for (int s = 0; s < Spans; ++s) {
        const int channel = (s * Lanes + lane) * 8;
        raw[t][s] = load_raw8<T, Wide>(data + slot[t] * d + channel, at + t * kGroups + group < last ? d - channel : 0);
      }
    }
#pragma unroll
    for (int t = 0; t < kTokensInFlight; ++t) {
      float x[Spans][8], scale = 1.0F;
#pragma unroll
      for (int s = 0; s < Spans; ++s) unpack_raw8(raw[t][s], x[s]);
      if constexpr (F::kScales) {
        float squares = 0;
#pragma unroll
        for (int s = 0; s < Spans; ++s)
#pragma unroll
          for (int c = 0; c < 8; ++c) squares += x[s][c] * x[s][c];
#pragma unroll
        for (int offset = Lanes / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(kAllLanes, squares, offset);
        scale = f.scale(squares);
      }
#pragma unroll
      for (int s = 0; s < Spans; ++s)
#pragma unroll
        for (int c = 0; c < 8; ++c) mine[s][c] += F::kScales ? x[s][c] * scale : x[s][c];
    }
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

// The partial sums, in the current Frame; `chunks` = ceil(longest / kTokenChunk), at least 1, `longest` of the lists.
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
