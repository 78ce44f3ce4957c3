#pragma once

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/launch.cuh"

namespace kvlab {

constexpr int kTokenThreads = 256, kTokenChunk = 256, kTokensInFlight = 4, kMostTokenDim = 512;

// As stored: several loads are in flight.
template <class T>
struct Raw8 {
  uint4 part[sizeof(T) / 2];
};

// n of eight elements, then 0. Wide: p is aligned to 16 bytes, n >= 8 or n <= 0.
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

// Without a division per token.
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

// Lanes lanes per token, eight channels each (Spans times), kTokensInFlight tokens per group.
template <class T, int Lanes, int Spans, bool Wide>
struct TokenWalk {
  static constexpr int kStep = kWarpSize / Lanes * kTokensInFlight;  // tokens per warp

  T* data;
  int d, lane, group;  // of the token, of the warp
  __device__ __forceinline__ TokenWalk(const DeviceRows& kv, bool values)
      : data(static_cast<T*>(values ? kv.v : kv.k)), d(kv.head_dim), lane(lane_index() % Lanes), group(lane_index() / Lanes) {}

  __device__ __forceinline__ int channel(int span) const { return (span * Lanes + lane) * 8; }
  __device__ __forceinline__ std::int32_t token(std::int32_t at, int t) const { return at + t * (kWarpSize / Lanes) + group; }
  // Zeros if not valid.
  __device__ __forceinline__ void load(std::int64_t slot, bool valid, Raw8<T> (&raw)[Spans]) const {
#pragma unroll
    for (int s = 0; s < Spans; ++s) raw[s] = load_raw8<T, Wide>(data + slot * d + channel(s), valid ? d - channel(s) : 0);
  }

  // take(token, x) for kStep tokens from `at` on of every `stride` before `end`. Lanes beyond pass a token >= end and the last token's
  // numbers.
  template <class Slot, class Take>
  __device__ __forceinline__ void run(std::int32_t at, std::int32_t end, std::int32_t stride, const Slot& slot, const Take& take) const {
    for (; at < end; at += stride) {
      std::int64_t from[kTokensInFlight];
      Raw8<T> raw[kTokensInFlight][Spans];
#pragma unroll
      for (int t = 0; t < kTokensInFlight; ++t) from[t] = slot(min(token(at, t), end - 1));
#pragma unroll
      for (int t = 0; t < kTokensInFlight; ++t) load(from[t], true, raw[t]);
#pragma unroll
      for (int t = 0; t < kTokensInFlight; ++t) {
        float x[Spans][8];
#pragma unroll
        for (int s = 0; s < Spans; ++s) unpack_raw8(raw[t][s], x[s]);
        take(token(at, t), x);
      }
    }
  }
};

template <int Lanes>
__device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
  for (int offset = Lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

template <int Lanes>
__device__ __forceinline__ float sum_of_groups(float x) {
#pragma unroll
  for (int offset = Lanes; offset < kWarpSize; offset *= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// f(lanes, spans, wide); throws CudaError beyond kMostTokenDim.
template <class F>
void for_token_lanes(const char* name, const DeviceRows& kv, F&& f) {
  const int d = kv.head_dim;
  if (d > kMostTokenDim) throw CudaError(std::string(name) + ": heads of more than " + std::to_string(kMostTokenDim) + " channels");
  constexpr std::integral_constant<int, 1> kOneSpan{};
  constexpr std::integral_constant<int, 2> kTwoSpans{};
  if (d % 8 != 0 || !aligned16({kv.k, kv.v})) return f(std::integral_constant<int, 32>{}, kTwoSpans, std::false_type{});
  if (d > 256) return f(std::integral_constant<int, 32>{}, kTwoSpans, std::true_type{});
  for_value<8, 16, 32>(d <= 64 ? 8 : d <= 128 ? 16 : 32, [&](auto lanes) { f(lanes, kOneSpan, std::true_type{}); });
}

}  // namespace kvlab
