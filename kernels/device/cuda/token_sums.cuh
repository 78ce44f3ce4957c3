#pragma once

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/vectors.cuh"

namespace kvlab {

// Eight neighbouring elements as they lie in memory, so that several loads are under way before the first is used.
template <class T>
struct Raw8 {
  uint4 part[sizeof(T) / 2];
};

// n elements at p, of eight; the rest 0. Wide: p is aligned to 16 bytes and n is at least 8 or at most 0.
template <class T, bool Wide>
__device__ __forceinline__ Raw8<T> load_raw8(const T* p, int n) {
  constexpr int kParts = sizeof(T) / 2;
  Raw8<T> raw;
  if constexpr (Wide) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) raw.part[i] = n > 0 ? reinterpret_cast<const uint4*>(p)[i] : make_uint4(0, 0, 0, 0);
  } else {
    std::uint32_t words[4 * kParts] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (sizeof(T) == 4)
        words[i] = i < n ? __float_as_uint(p[i]) : 0U;
      else
        words[i / 2] |= (i < n ? static_cast<std::uint32_t>(p[i].bits) : 0U) << (i % 2 * 16);
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) raw.part[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
  }
  return raw;
}

template <class T>
__device__ __forceinline__ void unpack_raw8(const Raw8<T>& raw, float (&x)[8]) {
  if constexpr (sizeof(T) == 2) {
    unpack8<T>(raw.part[0], x);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[4 * i] = __uint_as_float(raw.part[i].x), x[4 * i + 1] = __uint_as_float(raw.part[i].y);
      x[4 * i + 2] = __uint_as_float(raw.part[i].z), x[4 * i + 3] = __uint_as_float(raw.part[i].w);
    }
  }
}

// Places of one row's tokens in the pool, without a division per token.
struct TokenPlaces {
  const std::int32_t* page;
  std::uint32_t page_tokens, inverse;
  __device__ TokenPlaces(const DeviceRows& kv, int row)
      : page(kv.page + kv.page_begin[row]), page_tokens(static_cast<std::uint32_t>(kv.page_tokens)), inverse(0xFFFFFFFFU / page_tokens) {}
  __device__ std::int64_t operator()(std::int32_t token) const {
    const auto i = static_cast<std::uint32_t>(token);
    auto at = static_cast<std::uint32_t>(static_cast<std::uint64_t>(i) * inverse >> 32);  // i / page_tokens, or one less
    std::uint32_t rest = i - at * page_tokens;
    if (rest >= page_tokens) ++at, rest -= page_tokens;
    return static_cast<std::int64_t>(page[at]) * page_tokens + rest;
  }
};

// Sums over the channels of each token's key or value. Lanes lanes share a token, eight channels each (Spans times), and four tokens of
// every such group are under way at once. F:
//   kSums, kVectors              how many sums per token, how many vectors per row that they need
//   begin(row), end(row)         tokens
//   vector(row, v)               [head_dim] float, or null: zeros
//   add(sums, x, y[kVectors])    takes in one channel
//   finish(row, token, sums)     called once per token
constexpr int kTokenThreads = 256, kTokenChunk = 256, kTokensInFlight = 4, kMostTokenDim = 512;

struct TokenSumsShape {
  bool values = false;  // of V, not K
  int chunks = 0;       // per row
};

template <class T, int Lanes, int Spans, bool Wide, class F>
__global__ void __launch_bounds__(kTokenThreads, 2) token_sums(F f, DeviceRows kv, TokenSumsShape shape) {
  constexpr int kGroups = kWarpSize / Lanes, kStep = kTokenThreads / kWarpSize * kGroups * kTokensInFlight;
  constexpr int kVectors = F::kVectors > 0 ? F::kVectors : 1;
  const int row = blockIdx.x / shape.chunks, d = kv.head_dim;
  const std::int32_t end = f.end(row), first = f.begin(row) + static_cast<std::int32_t>(blockIdx.x % shape.chunks) * kTokenChunk;
  if (first >= end) return;
  const TokenPlaces places(kv, row);
  const T* const data = static_cast<const T*>(shape.values ? kv.v : kv.k);
  const int lane = lane_index() % Lanes, group = lane_index() / Lanes;
  float y[Spans][8][kVectors];
#pragma unroll
  for (int s = 0; s < Spans; ++s) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const float* from = F::kVectors > 0 ? f.vector(row, v) : nullptr;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const int channel = (s * Lanes + lane) * 8 + c;
        y[s][c][v] = from != nullptr && channel < d ? from[channel] : 0.0F;
      }
    }
  }
  const std::int32_t last = min(end, first + kTokenChunk);
  for (std::int32_t at = first + warp_index() * kGroups * kTokensInFlight; at < last; at += kStep) {
    std::int64_t slot[kTokensInFlight];
    Raw8<T> raw[kTokensInFlight][Spans];
#pragma unroll
    for (int t = 0; t < kTokensInFlight; ++t) slot[t] = places(min(at + t * kGroups + group, last - 1));
#pragma unroll
    for (int t = 0; t < kTokensInFlight; ++t) {
#pragma unroll
      for (int s = 0; s < Spans; ++s) {
        const int channel = (s * Lanes + lane) * 8;
        raw[t][s] = load_raw8<T, Wide>(data + slot[t] * d + channel, d - channel);
      }
    }
#pragma unroll
    for (int t = 0; t < kTokensInFlight; ++t) {
      float sums[F::kSums] = {};
#pragma unroll
      for (int s = 0; s < Spans; ++s) {
        float x[8];
        unpack_raw8(raw[t][s], x);
#pragma unroll
        for (int c = 0; c < 8; ++c) f.add(sums, x[c], y[s][c]);
      }
#pragma unroll
      for (int i = 0; i < F::kSums; ++i) {
#pragma unroll
        for (int offset = Lanes / 2; offset > 0; offset /= 2) sums[i] += __shfl_xor_sync(kAllLanes, sums[i], offset);
      }
      const std::int32_t token = at + t * kGroups + group;
      if (lane == 0 && token < last) f.finish(row, token, sums);
    }
  }
}

// Calls f(lanes, spans, wide), std::integral_constants, for the rows' vectors; throws CudaError beyond kMostTokenDim.
template <class F>
void for_token_lanes(const char* name, const DeviceRows& kv, F&& f) {
  const int d = kv.head_dim;
  if (d > kMostTokenDim) throw CudaError(std::string(name) + ": heads of more than " + std::to_string(kMostTokenDim) + " channels");
  if (d % 8 != 0 || !aligned16({kv.k, kv.v}))
    f(std::integral_constant<int, 32>{}, std::integral_constant<int, 2>{}, std::false_type{});
  else if (d <= 64)
    f(std::integral_constant<int, 8>{}, std::integral_constant<int, 1>{}, std::true_type{});
  else if (d <= 128)
    f(std::integral_constant<int, 16>{}, std::integral_constant<int, 1>{}, std::true_type{});
  else if (d <= 256)
    f(std::integral_constant<int, 32>{}, std::integral_constant<int, 1>{}, std::true_type{});
  else
    f(std::integral_constant<int, 32>{}, std::integral_constant<int, 2>{}, std::true_type{});
}

// `longest`: of the rows' end - begin.
template <class F>
void launch_token_sums(const char* name, CudaContext& cuda, const DeviceRows& kv, ElementType type, bool values, std::int64_t longest,
                       const F& f) {
  const TokenSumsShape shape{values, static_cast<int>(ceil_div(longest, kTokenChunk))};
  for_token_lanes(name, kv, [&](auto lanes, auto spans, auto wide) {
    for_type(type, [&](auto zero) {
      launch(name, cuda, {dim3(static_cast<unsigned>(std::int64_t{kv.num_rows} * shape.chunks)), dim3(kTokenThreads)},
             token_sums<decltype(zero), decltype(lanes)::value, decltype(spans)::value, decltype(wide)::value, F>, f, kv, shape);
    });
  });
}

}  // namespace kvlab
