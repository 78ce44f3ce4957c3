#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// fp8 as in Micikevicius et al. 2022, arXiv:2209.05433: e4m3 has no infinity and ends at 448, e5m2 ends at 57344.
enum class StoredType : std::uint8_t { kFp32, kFp16, kBf16, kFp8E4M3, kFp8E5M2 };

constexpr std::int64_t bytes_of(StoredType type) {
  return type == StoredType::kFp32 ? 4 : type == StoredType::kFp16 || type == StoredType::kBf16 ? 2 : 1;
}

// Magnitudes from 2^-14 on keep two bits of fraction; below, one unit is 2^-16. For |x| <= 57344.
KVLAB_BOTH constexpr std::uint32_t to_e5m2(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 24 & 0x80U, magnitude = bits & 0x7FFFFFFFU;
  if (magnitude >= 0x38800000U) return sign | (magnitude + 0xFFFFFU + (magnitude >> 21 & 1U) - 0x38000000U) >> 21;
  return sign | (std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 128.0F) - 0x43000000U);
}

// Rounds to nearest, ties to even. Overflow and infinity become the largest finite number; NaN becomes 0.
std::uint32_t to_stored(StoredType type, float x);
float from_stored(StoredType type, std::uint32_t bits);

class StoredArrays;
struct RowList;

// Stores listed vectors, [total(), head_dim] in list order; they then hold the decoded numbers. Entries of -1 are stored as zeros.
// `unpacks` fills the listed vectors.
struct Cast {
  ListedTokens tokens;
  StoredType type = StoredType::kFp16;
  std::uint8_t* stored = nullptr;  // [total() * head_dim * bytes_of(type)] out, little-endian
  bool unpacks = false;
};
OpCall call(const Cast&);
void run_cpu(const Cast&);
void run_cuda(const Cast&, CudaContext&);

void stored_arrays(Cast&, StoredArrays&);
bool goes_on(const Cast&, const Cast& later, std::span<const RowList>);

}  // namespace kvlab
