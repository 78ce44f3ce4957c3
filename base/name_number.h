#pragma once

#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>

#include "base/hash.h"

namespace kvlab {

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
