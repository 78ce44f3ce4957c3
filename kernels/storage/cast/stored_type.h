#pragma once

#include <cstdint>

namespace kvlab {

// fp8 as in Micikevicius et al. 2022, arXiv:2209.05433: e4m3 has no infinity and ends at 448, e5m2 ends at 57344.
enum class StoredType : std::uint8_t { kFp32, kFp16, kBf16, kFp8E4M3, kFp8E5M2 };

constexpr std::int64_t bytes_of(StoredType type) {
  return type == StoredType::kFp32 ? 4 : type == StoredType::kFp16 || type == StoredType::kBf16 ? 2 : 1;
}

// Rounds to nearest, ties to even. Overflow and infinity become the largest finite number; NaN becomes 0.
std::uint32_t to_stored(StoredType type, float x);
float from_stored(StoredType type, std::uint32_t bits);

}  // namespace kvlab
