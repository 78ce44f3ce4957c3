#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/half.h"

namespace kvlab {

// Numbers in fp16, and fields of a few bits, lowest first, in bytes that are 0 beforehand.
inline void put_half(std::uint8_t* to, float x) {
  const std::uint16_t half = float_to_half(x);
  std::memcpy(to, &half, 2);
}
inline float half_at(const std::uint8_t* from) {
  std::uint16_t half = 0;
  std::memcpy(&half, from, 2);
  return half_to_float(half);
}
constexpr std::int64_t field_bytes(std::int64_t fields, int bits) { return (fields * bits + 7) / 8; }
inline void put_field(std::uint8_t* to, std::int32_t i, int bits, std::uint32_t value) {
  for (std::int32_t b = 0, at = i * bits; b < bits; ++b, ++at)
    to[at / 8] = static_cast<std::uint8_t>(to[at / 8] | (value >> b & 1U) << (at % 8));
}
inline std::uint32_t field_at(const std::uint8_t* from, std::int32_t i, int bits) {
  std::uint32_t value = 0;
  for (std::int32_t b = 0, at = i * bits; b < bits; ++b, ++at) value |= (std::uint32_t{from[at / 8]} >> (at % 8) & 1U) << b;
  return value;
}
// Index of the nearest point; the first of equals.
inline std::uint32_t nearest_point(std::span<const float> points, float x) {
  std::uint32_t best = 0;
  for (std::uint32_t i = 1; i < points.size(); ++i)
    if (std::fabs(points[i] - x) < std::fabs(points[best] - x)) best = i;
  return best;
}

}  // namespace kvlab
