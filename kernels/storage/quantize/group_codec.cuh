#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/storage/quantize/quantize.h"

namespace kvlab {

struct CodecArgs {
  DeviceList list;
  const std::int64_t* base = nullptr;  // [num_rows] first byte in packed
  std::uint8_t* packed = nullptr;
  const float* channel_scale = nullptr;
  const std::int32_t* scale_row = nullptr;  // [num_rows]; null: no scaling
  std::int32_t bits = 4, header = 4;        // header: bytes before the codes
  std::int32_t group = 0;                   // elements; 0: the row's list
  bool symmetric = false, across = true;    // across: groups along channels
  std::int32_t align = 1;                   // of those groups in bytes: 4, 2 or 1
  std::int32_t tiles = 1;                   // blocks per row

  KVLAB_BOTH std::int64_t group_bytes(std::int64_t elements) const { return header + (elements * bits + 7) / 8; }
  KVLAB_BOTH const float* scales(std::int32_t row) const {
    return scale_row == nullptr ? nullptr : channel_scale + static_cast<std::int64_t>(scale_row[row]) * list.rows.head_dim;
  }
};

// Valid until the current Frame ends.
inline CodecArgs codec_args(const Quantize& op, CudaContext& cuda) {
  const KvRows& kv = op.tokens.kv;
  if (kv.pool_tokens > std::numeric_limits<std::int32_t>::max())
    throw CudaError("quantizing a pool of " + std::to_string(kv.pool_tokens) + " tokens; kernels number them with 31 bits");
  std::vector<std::int64_t> base(static_cast<std::size_t>(kv.num_rows));
  std::int64_t bytes = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    base[static_cast<std::size_t>(r)] = bytes;
    bytes += packed_bytes(op.codec, op.tokens.entries(r), kv.head_dim);
  }
  CodecArgs a;
  a.list = on_device(op.tokens, cuda);
  a.base = cuda.upload(base.data(), kv.num_rows);
  a.packed = op.packed;
  a.channel_scale = op.channel_scale;
  a.scale_row = cuda.upload(op.scale_row, kv.num_rows);
  a.bits = op.codec.bits, a.symmetric = op.codec.symmetric, a.header = op.codec.symmetric ? 2 : 4;
  a.across = op.codec.axis == GroupCodec::Axis::kToken;
  a.group = op.codec.group > 0 ? op.codec.group : 0;
  if (!a.across) return a;
  if (a.group == 0 || a.group > kv.head_dim) a.group = kv.head_dim;
  // Rows begin at token boundaries.
  const std::int64_t all = reinterpret_cast<std::intptr_t>(op.packed) | a.header | a.group_bytes(a.group) | a.bits;
  a.align = all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
  return a;
}

// Groups along channels of 8 * 2^n numbers, n <= 5, aligned: a vector of 8 per lane.
inline bool fits_lanes(const CodecArgs& a) {
  const std::int32_t d = a.list.rows.head_dim;
  const bool power_of_two = (a.group & (a.group - 1)) == 0;
  return a.across && a.group >= 8 && a.group <= 256 && power_of_two && d % a.group == 0 &&
         (reinterpret_cast<std::uintptr_t>(a.list.data) | reinterpret_cast<std::uintptr_t>(a.channel_scale)) % 16 == 0;
}

// Along tokens, for even head_dim and no scaling.
void quantize_channels(CodecArgs a, ElementType type, CudaContext& cuda);
void dequantize_channels(CodecArgs a, Quantize::Mode mode, ElementType type, CudaContext& cuda);

// The arithmetic of group_codec.cpp, bit for bit: no fused multiply-add. Ranges are clamped to fp16; values outside get the code of the
// end.
constexpr float kMostHalf = 65504.0F;

// Skips NaN: fminf and fmaxf return the other operand.
struct GroupRange {
  float least = kMostHalf, most = -kMostHalf;
  __device__ __forceinline__ void take(float x) { least = fminf(least, x), most = fmaxf(most, x); }
  __device__ __forceinline__ void join(float other_least, float other_most) {
    least = fminf(least, other_least), most = fmaxf(most, other_most);
  }
  // With the lane at distance `offset`, a power of two.
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

// Number i's code of eight; Bits = 0: `bits`.
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

// Up to 8 bytes; p is a multiple of align: 1, 2 or 4.
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

// f(bits, symmetric); bits 0: any number.
template <bool kSpecial, class F>
void for_code(const CodecArgs& a, F&& f) {
  const bool special = kSpecial && (a.bits == 2 || a.bits == 4 || a.bits == 8);
  for_value<false, true>(a.symmetric, [&](auto symmetric) {
    if constexpr (kSpecial) for_value<2, 4, 8>(a.bits, [&](auto bits) { f(bits, symmetric); });
    if (!special) f(std::integral_constant<int, 0>{}, symmetric);
  });
}

}  // namespace kvlab
