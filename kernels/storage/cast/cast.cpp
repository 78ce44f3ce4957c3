#include "kernels/storage/cast/cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/ceil_div.h"
#include "base/half.h"
#include "base/parallel.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

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
      return from_float<fp8>(x).bits;
    case StoredType::kFp8E5M2:
      return to_e5m2(std::clamp(x, -57344.0F, 57344.0F));
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
      return to_float(fp8{static_cast<std::uint8_t>(bits)});
    case StoredType::kFp8E5M2:
      return half_to_float(static_cast<std::uint16_t>(bits << 8));
  }
  return 0.0F;
}

OpCall call(const Cast& a) {
  const std::int64_t n = a.tokens.total(), d = a.tokens.kv.head_dim;
  return {.op = "cast",
          .rows = a.tokens.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = a.tokens.dense_bytes() + a.tokens.list_bytes() + n * d * bytes_of(a.type),
          .flops = n * d};
}
KVLAB_WITHOUT_CUDA(Cast)

namespace {

std::array<float, 256> one_byte_numbers(StoredType type) {
  std::array<float, 256> number{};
  for (std::uint32_t bits = 0; bits < 256; ++bits) number[bits] = from_stored(type, bits);
  return number;
}

// Calls f(stored, x) on all cores.
template <class F>
void for_each_stored(const Cast& a, F&& f) {
  constexpr std::int32_t kPart = 256;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::int32_t tokens = a.tokens.count(r);
    for_each_in_parallel(ceil_div(tokens, kPart), [&](std::int64_t part) {
      for (auto i = static_cast<std::int32_t>(part) * kPart; i < std::min(tokens, (static_cast<std::int32_t>(part) + 1) * kPart); ++i)
        f(a.stored + (a.tokens.first[r] + i) * a.tokens.kv.head_dim * bytes_of(a.type), a.tokens.at(r, i));
    });
  }
}

void cast(const Cast& a) {
  const std::int64_t d = a.tokens.kv.head_dim, width = bytes_of(a.type);
  std::fill_n(a.stored, a.tokens.total() * d * width, std::uint8_t{0});
  const std::array<float, 256> one_byte = width == 1 ? one_byte_numbers(a.type) : std::array<float, 256>{};
  for_each_stored(a, [&](std::uint8_t* to, float* x) {
    for (std::int64_t c = 0; c < d; ++c) {
      const std::uint32_t bits = to_stored(a.type, x[c]);
      std::memcpy(to + c * width, &bits, static_cast<std::size_t>(width));
      x[c] = width == 1 ? one_byte[bits] : from_stored(a.type, bits);
    }
  });
}

// No call or branch in the loop.
template <class Stored, class F>
void uncast(const Cast& a, F&& number) {
  const std::int64_t d = a.tokens.kv.head_dim;
  for_each_stored(a, [&](const std::uint8_t* from, float* x) {
    for (std::int64_t c = 0; c < d; ++c) {
      Stored bits = 0;
      std::memcpy(&bits, from + c * std::int64_t{sizeof(Stored)}, sizeof(Stored));
      x[c] = number(bits);
    }
  });
}

// As half_to_float for finite numbers.
float finite_half_to_float(std::uint16_t half) {
  const auto bits = static_cast<std::uint32_t>(half);
  const float magnitude = std::bit_cast<float>((bits & 0x7fffU) << 13U) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | (bits & 0x8000U) << 16U);
}

void uncast(const Cast& a) {
  switch (a.type) {
    case StoredType::kFp32:
      return uncast<std::uint32_t>(a, [](std::uint32_t bits) { return std::bit_cast<float>(bits); });
    case StoredType::kFp16:
      return uncast<std::uint16_t>(a, [](std::uint16_t bits) { return finite_half_to_float(bits); });
    case StoredType::kBf16:
      return uncast<std::uint16_t>(a, [](std::uint16_t bits) { return bfloat16_to_float(bits); });
    case StoredType::kFp8E4M3:
    case StoredType::kFp8E5M2:
      return uncast<std::uint8_t>(a, [number = one_byte_numbers(a.type)](std::uint8_t bits) { return number[bits]; });
  }
}

}  // namespace

void run_cpu(const Cast& a) { a.unpacks ? uncast(a) : cast(a); }

void stored_arrays(Cast& a, StoredArrays& arrays) {
  arrays.rows(a.stored, [&](std::int64_t entries) { return entries * a.tokens.kv.head_dim * bytes_of(a.type); });
}

bool goes_on(const Cast& a, const Cast& later, std::span<const RowList>) { return later.type == a.type; }

}  // namespace kvlab
