#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "base/half.h"

// Round to nearest even, the same on CPU and GPU.
#ifdef __CUDACC__
#define KVLAB_BOTH __host__ __device__
#define KVLAB_BODY __device__  // in a .cu unit the body of a row operation is device code
#else
#define KVLAB_BOTH
#define KVLAB_BODY
#endif

namespace kvlab {

enum class ElementType : std::uint8_t { kF32, kF16, kBf16 };

constexpr std::int64_t element_bytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }
constexpr std::string_view name_of(ElementType type) {
  return type == ElementType::kF32 ? "f32" : type == ElementType::kF16 ? "f16" : "bf16";
}

// IEEE 754 binary16.
struct f16 {
  std::uint16_t bits;
};
// The upper half of a binary32.
struct bf16 {
  std::uint16_t bits;
};
// OCP FP8 E4M3: bias 7, no infinities, 0x7f is NaN, largest 448.
struct fp8 {
  std::uint8_t bits;
};

KVLAB_BOTH constexpr float to_float(float x) { return x; }

KVLAB_BOTH constexpr float to_float(bf16 x) { return bfloat16_to_float(x.bits); }

KVLAB_BOTH constexpr float to_float(f16 x) { return half_to_float(x.bits); }

KVLAB_BOTH constexpr float to_float(fp8 x) {
  const std::uint32_t exponent = (x.bits >> 3) & 15U, fraction = x.bits & 7U;
  if ((x.bits & 0x7FU) == 0x7FU) return std::bit_cast<float>(0x7FC00000U);
  const float magnitude =
      exponent == 0 ? static_cast<float>(fraction) * 0x1p-9F : std::bit_cast<float>((exponent + 120) << 23 | fraction << 20);
  return (x.bits & 0x80U) != 0 ? -magnitude : magnitude;
}

template <class T>
struct From;

template <>
struct From<float> {
  KVLAB_BOTH static constexpr float convert(float x) { return x; }
};

template <>
struct From<bf16> {
  KVLAB_BOTH static constexpr bf16 convert(float x) { return {float_to_bfloat16(x)}; }
};

template <>
struct From<f16> {
  KVLAB_BOTH static constexpr f16 convert(float x) { return {float_to_half(x)}; }
};

template <>
struct From<fp8> {  // saturates at 448, as cuBLAS and vLLM
  KVLAB_BOTH static constexpr fp8 convert(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = u >> 24 & 0x80U, magnitude = u & 0x7FFFFFFFU;
    if (magnitude > 0x7F800000U) return {static_cast<std::uint8_t>(sign | 0x7FU)};
    if (magnitude >= 0x43E00000U) return {static_cast<std::uint8_t>(sign | 0x7EU)};  // 448
    if (magnitude >= 0x3C800000U) {                                                  // 2^-6: normal
      const std::uint32_t rounded = magnitude + 0x7FFFFU + (magnitude >> 20 & 1U);
      return {static_cast<std::uint8_t>(sign | (rounded - 0x3C000000U) >> 20)};
    }
    const float shifted = std::bit_cast<float>(magnitude) + 16384.0F;  // last place: 2^-9
    return {static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000U))};
  }
};

template <class T>
KVLAB_BOTH constexpr T from_float(float x) {
  return From<T>::convert(x);
}

template <class T>
inline constexpr ElementType kElementType = ElementType::kF32;
template <>
inline constexpr ElementType kElementType<f16> = ElementType::kF16;
template <>
inline constexpr ElementType kElementType<bf16> = ElementType::kBf16;

}  // namespace kvlab
