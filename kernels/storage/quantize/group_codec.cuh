#pragma once

#include <type_traits>

#include "kernels/device/cuda/vectors.cuh"
#include "kernels/storage/quantize/codec_args.h"

// The arithmetic of group_codec.cpp, bit for bit: no product is fused with a sum. A group's range is clamped to fp16; values outside of it
// get the code of its end.
namespace kvlab {

constexpr float kMostHalf = 65504.0F;

// NaN is skipped, because fminf and fmaxf return the other operand.
struct GroupRange {
  float least = kMostHalf, most = -kMostHalf;
  __device__ __forceinline__ void take(float x) { least = fminf(least, x), most = fmaxf(most, x); }
  __device__ __forceinline__ void join(float other_least, float other_most) {
    least = fminf(least, other_least), most = fmaxf(most, other_most);
  }
  // Joins with the lane at distance `offset`, a power of two.
  __device__ __forceinline__ void join_lane(int offset) {
    join(__shfl_xor_sync(kAllLanes, least, offset), __shfl_xor_sync(kAllLanes, most, offset));
  }
};

__device__ __forceinline__ std::uint32_t half_bits(float x) { return pack<f16>(x, 0.0F) & 0xFFFFU; }
__device__ __forceinline__ float half_value(std::uint32_t bits) { return unpack<f16>(bits).x; }

// The largest fp16 number not above x; half_above(): the smallest not below it.
__device__ __forceinline__ std::uint32_t half_below(float x) {
  const std::uint32_t half = half_bits(x), magnitude = half & 0x7FFFU;
  const std::uint32_t below = magnitude == 0 ? 0x8001U : (half & 0x8000U) != 0 ? half + 1 : half - 1;
  return half_value(half) <= x ? half : below;
}
__device__ __forceinline__ std::uint32_t half_above(float x) { return half_below(-x) ^ 0x8000U; }

// code = trunc(clamp((x - zero) * inverse + shift) + 1/2).
struct GroupStep {
  std::uint32_t header;  // zero, scale | scale, 0
  float zero, inverse;
};

template <bool Symmetric>
__device__ __forceinline__ float top_code(int bits) {
  return static_cast<float>(Symmetric ? (1 << bits) - 2 : (1 << bits) - 1);
}

template <bool Symmetric>
__device__ __forceinline__ GroupStep step_of_header(std::uint32_t header) {
  const float scale = half_value(Symmetric ? header : header >> 16);
  return {header, Symmetric ? 0.0F : half_value(header), scale > 0.0F ? 1.0F / scale : 0.0F};
}

template <bool Symmetric>
__device__ __forceinline__ GroupStep choose_step(GroupRange r, int bits) {
  float least = fmaxf(r.least, -kMostHalf), most = fminf(r.most, kMostHalf);
  if (least > most) least = most = 0.0F;
  least += 0.0F, most += 0.0F;  // -0 becomes 0
  if constexpr (Symmetric) {
    const float largest = fmaxf(-least, most) + 0.0F;
    return step_of_header<true>(half_above(largest / static_cast<float>((1 << (bits - 1)) - 1)));
  } else {
    const std::uint32_t zero = half_below(least);
    const float scale = fminf((most - half_value(zero)) / static_cast<float>((1 << bits) - 1), kMostHalf);
    return step_of_header<false>(zero | half_above(scale) << 16);
  }
}

template <bool Symmetric>
__device__ __forceinline__ std::uint32_t encode(const GroupStep& s, float top, float x) {
  float code;
  if constexpr (Symmetric)
    code = __fmul_rn(x == x ? x : 0.0F, s.inverse) + 0.5F * top;
  else
    code = __fmul_rn(x - s.zero, s.inverse);
  code = fminf(fmaxf(code, 0.0F) + 0.5F, top);  // NaN becomes 0
  return static_cast<std::uint32_t>(code);
}

// Number i's code among eight; `bits` is Bits unless Bits is 0.
template <int Bits>
__device__ __forceinline__ void add_code(unsigned long long& codes, std::uint32_t code, int bits, int i) {
  if constexpr (Bits != 0 && Bits <= 4)
    codes |= code << Bits * i;
  else
    codes |= static_cast<unsigned long long>(code) << bits * i;
}

// x = zero + scale * (code + least).
struct GroupScale {
  float zero, scale, offset;  // offset: 2^23 - least
};
template <bool Symmetric>
__device__ __forceinline__ GroupScale scale_of_header(std::uint32_t header, float top) {
  return {Symmetric ? 0.0F : half_value(header), half_value(Symmetric ? header : header >> 16), 0x1p23F + (Symmetric ? 0.5F * top : 0.0F)};
}
// Exact: a code is set into the fraction of 2^23.
__device__ __forceinline__ float decode(const GroupScale& s, std::uint32_t code) {
  return s.zero + __fmul_rn(s.scale, __uint_as_float(0x4B000000U | code) - s.offset);
}

// The first `bytes` (up to 8) bytes; p is a multiple of align: 1, 2 or 4.
__device__ __forceinline__ void put_bytes(std::uint8_t* p, unsigned long long value, int bytes, int align) {
  int at = 0;
  if (align == 4)
    for (; at + 4 <= bytes; at += 4) *reinterpret_cast<std::uint32_t*>(p + at) = static_cast<std::uint32_t>(value >> 8 * at);
  if (align >= 2)
    for (; at + 2 <= bytes; at += 2) *reinterpret_cast<std::uint16_t*>(p + at) = static_cast<std::uint16_t>(value >> 8 * at);
  for (; at < bytes; ++at) p[at] = static_cast<std::uint8_t>(value >> 8 * at);
}
__device__ __forceinline__ unsigned long long get_bytes(const std::uint8_t* p, int bytes, int align) {
  unsigned long long value = 0;
  int at = 0;
  if (align == 4)
    for (; at + 4 <= bytes; at += 4) value |= static_cast<unsigned long long>(*reinterpret_cast<const std::uint32_t*>(p + at)) << 8 * at;
  if (align >= 2)
    for (; at + 2 <= bytes; at += 2) value |= static_cast<unsigned long long>(*reinterpret_cast<const std::uint16_t*>(p + at)) << 8 * at;
  for (; at < bytes; ++at) value |= static_cast<unsigned long long>(p[at]) << 8 * at;
  return value;
}

__device__ __forceinline__ int common_alignment(std::uint64_t bits) { return bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1; }

// Calls f with the number of bits as a constant if kernels are compiled for it, else with 0: any number.
template <bool kSpecial, class F>
void for_bits(int bits, F&& f) {
  if constexpr (kSpecial) {
    if (bits == 2) return f(std::integral_constant<int, 2>{});
    if (bits == 4) return f(std::integral_constant<int, 4>{});
    if (bits == 8) return f(std::integral_constant<int, 8>{});
  }
  f(std::integral_constant<int, 0>{});
}

}  // namespace kvlab
