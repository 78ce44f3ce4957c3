#include "kernels/storage/cast/stored_type.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/half.h"

namespace kvlab {

namespace {

// In 8 bits; an exponent of 0 is subnormal.
struct Fp8 {
  int fraction_bits, bias;
  float most;
};
constexpr Fp8 kE4M3{3, 7, 448.0F}, kE5M2{2, 15, 57344.0F};

std::uint32_t to_fp8(const Fp8& f, float x) {
  const std::uint32_t sign = std::signbit(x) ? 0x80U : 0U;
  const float magnitude = std::min(std::fabs(x), f.most);
  const int binade =
      static_cast<int>(std::bit_cast<std::uint32_t>(magnitude) >> 23) - 127;  // magnitude in [2^binade, 2^(binade+1)), or less
  const int lowest = std::max(binade, 1 - f.bias), unit = lowest - f.fraction_bits;
  const float scale = std::bit_cast<float>(static_cast<std::uint32_t>(127 - unit) << 23);  // 2^-unit
  // Rounds to integers, ties to even: sums this large have no fraction.
  constexpr float kInteger = 0x1p23F;
  const auto units = static_cast<std::uint32_t>(magnitude * scale + kInteger - kInteger);
  // Full fractions carry into the exponent: units counts from the binade below, or from 0.
  return sign | (units + (static_cast<std::uint32_t>(lowest + f.bias - 1) << f.fraction_bits));
}

float from_fp8(const Fp8& f, std::uint32_t bits) {
  const auto exponent = static_cast<int>(bits >> f.fraction_bits & (0x7fU >> f.fraction_bits));
  const auto fraction = static_cast<int>(bits & ((1U << f.fraction_bits) - 1U));
  const int implied = exponent > 0 ? 1 << f.fraction_bits : 0;
  const float magnitude = std::ldexp(static_cast<float>(implied + fraction), std::max(exponent, 1) - f.bias - f.fraction_bits);
  return (bits & 0x80U) != 0 ? -magnitude : magnitude;
}

}  // namespace

std::uint32_t to_stored(StoredType type, float x) {
  if (std::isnan(x)) x = 0.0F;
  switch (type) {
    case StoredType::kFp32:
      return std::bit_cast<std::uint32_t>(std::clamp(x, -std::numeric_limits<float>::max(), std::numeric_limits<float>::max()));
    case StoredType::kFp16:
      return float_to_half(std::clamp(x, -65504.0F, 65504.0F));
    case StoredType::kBf16:
      return float_to_bfloat16(std::clamp(x, -0x1.fep127F, 0x1.fep127F));
    case StoredType::kFp8E4M3:
      return to_fp8(kE4M3, x);
    case StoredType::kFp8E5M2:
      return to_fp8(kE5M2, x);
  }
  return 0;
}

float from_stored(StoredType type, std::uint32_t bits) {
  switch (type) {
    case StoredType::kFp32:
      return std::bit_cast<float>(bits);
    case StoredType::kFp16:
      return half_to_float(static_cast<std::uint16_t>(bits));
    case StoredType::kBf16:
      return bfloat16_to_float(static_cast<std::uint16_t>(bits));
    case StoredType::kFp8E4M3:
      return from_fp8(kE4M3, bits);
    case StoredType::kFp8E5M2:
      return from_fp8(kE5M2, bits);
  }
  return 0.0F;
}

}  // namespace kvlab
