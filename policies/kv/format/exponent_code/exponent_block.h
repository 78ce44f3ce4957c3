#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace kvlab {

// A canonical prefix code: codes of one length follow in the order of the symbols.
struct PrefixCode {
  static constexpr int kMostBits = 64;
  std::uint8_t length[256];  // 0: the symbol does not occur
  std::uint64_t code[256];   // its lowest length[s] bits, highest first
  std::uint64_t first[kMostBits + 1];
  std::int32_t place[kMostBits + 1];  // of its symbol in `symbol`
  std::int32_t count[kMostBits + 1];
  std::uint8_t symbol[256];  // by length, then by symbol
};

inline PrefixCode prefix_code(const std::uint8_t* length) {
  PrefixCode p{};
  for (int s = 0; s < 256; ++s) {
    p.length[s] = length[s];
    if (length[s] > 0) ++p.count[length[s]];
  }
  for (int n = 1; n <= PrefixCode::kMostBits; ++n) {
    p.first[n] = n == 1 ? 0 : (p.first[n - 1] + static_cast<std::uint64_t>(p.count[n - 1])) << 1U;
    p.place[n] = n == 1 ? 0 : p.place[n - 1] + p.count[n - 1];
  }
  std::int32_t next[PrefixCode::kMostBits + 1] = {};
  for (int s = 0; s < 256; ++s) {
    if (const int n = length[s]; n > 0) {
      p.code[s] = p.first[n] + static_cast<std::uint64_t>(next[n]);
      p.symbol[p.place[n] + next[n]++] = static_cast<std::uint8_t>(s);
    }
  }
  return p;
}

// 4 bytes, possibly unaligned.
KVLAB_BOTH inline void put_offset(std::uint8_t* to, std::uint32_t offset) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(offset >> (8 * i));
}
KVLAB_BOTH inline std::uint32_t offset_at(const std::uint8_t* from) {
  std::uint32_t offset = 0;
  for (int i = 0; i < 4; ++i) offset |= static_cast<std::uint32_t>(from[i]) << (8 * i);
  return offset;
}

KVLAB_BOTH inline std::uint8_t sign_and_fraction(std::uint16_t bits) {
  return static_cast<std::uint8_t>((bits >> 8 & 0x80) | (bits & 0x7F));
}
KVLAB_BOTH inline int exponent_bits(std::uint16_t bits) { return bits >> 7 & 0xFF; }

// Exponents of n numbers, bits_at(i) in bf16; returns one past the last byte.
template <class BitsAt>
KVLAB_BOTH std::uint8_t* put_exponents(const PrefixCode& p, std::int32_t n, BitsAt&& bits_at, std::uint8_t* to) {
  std::uint32_t byte = 0;
  int filled = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    const int s = exponent_bits(bits_at(i));
    for (int b = p.length[s] - 1; b >= 0; --b) {
      byte = byte << 1 | static_cast<std::uint32_t>(p.code[s] >> b & 1U);
      if (++filled == 8) *to++ = static_cast<std::uint8_t>(byte), byte = 0, filled = 0;
    }
  }
  if (filled > 0) *to++ = static_cast<std::uint8_t>(byte << (8 - filled));
  return to;
}

// A block of n numbers: set(i, its bits in bf16).
template <class Set>
KVLAB_BOTH void read_block(const PrefixCode& p, std::int32_t n, const std::uint8_t* block, Set&& set) {
  const std::uint8_t* from = block + n;
  int left = 0;
  std::uint32_t byte = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    std::uint64_t code = 0;
    for (int bits = 1; bits <= PrefixCode::kMostBits; ++bits) {
      if (left == 0) byte = *from++, left = 8;
      code = code << 1 | (byte >> --left & 1U);
      if (code - p.first[bits] >= static_cast<std::uint64_t>(p.count[bits])) continue;
      const std::uint32_t exponent = p.symbol[p.place[bits] + static_cast<std::int32_t>(code - p.first[bits])];
      set(i, static_cast<std::uint16_t>((block[i] & 0x80U) << 8 | exponent << 7 | (block[i] & 0x7FU)));
      break;
    }
  }
}

}  // namespace kvlab
