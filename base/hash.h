#pragma once

#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>

namespace kvlab {

// SplitMix64's finalizer (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"): a bijection.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Order matters.
constexpr std::uint64_t hash_combine(std::uint64_t seed, std::uint64_t value) { return mix64(seed ^ mix64(value)); }

// The text as a number below 2^63 without leading zeros, else its hash.
inline std::int64_t number_of_name(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_plain = !text.starts_with('-') && (text.size() == 1 || !text.starts_with('0'));
  if (is_plain && error == std::errc{} && end == text.data() + text.size()) return value;
  std::uint64_t hash = text.size();
  for (const char c : text) hash = hash_combine(hash, static_cast<unsigned char>(c));
  return static_cast<std::int64_t>(hash >> 1);
}

}  // namespace kvlab
