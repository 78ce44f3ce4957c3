#pragma once

#include <bit>
#include <cstdint>

namespace kvlab {

// IEEE 754 binary16 and bfloat16, rounded to nearest even; overflow becomes infinite, NaN stays NaN.

constexpr float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16U;
  const std::uint32_t exponent = half >> 10U & 31U;
  const std::uint32_t fraction = half & 0x3ffU;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | fraction << 13U);
  return std::bit_cast<float>(sign | (exponent + 112U) << 23U | fraction << 13U);
}

constexpr std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16U & 0x8000U;
  std::uint32_t rest = bits & 0x7fffffffU;
  if (rest > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (rest >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // from 65536
  if (rest < 0x38800000U) {                                                    // below 2^-14 a unit is 2^-24, as of floats in [0.5, 1)
    const float shifted = std::bit_cast<float>(rest) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  rest += 0xfffU + (rest >> 13U & 1U);
  return static_cast<std::uint16_t>(sign | (rest - 0x38000000U) >> 13U);
}

constexpr float bfloat16_to_float(std::uint16_t bfloat) { return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat) << 16U); }

constexpr std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16U | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U);
}

}  // namespace kvlab
