#include "base/config/param_ranges.h"

#include <limits>

#include "base/text.h"

namespace kvlab {

std::string range_text(double min, double max, std::size_t bytes) {
  const double largest = bytes == sizeof(float) ? double{std::numeric_limits<float>::max()} : std::numeric_limits<double>::max();
  return "[" + number_text(min) + ", " + (max == largest ? "..." : number_text(max)) + "]";
}

std::string range_text(long long min, long long max, std::size_t bytes, bool is_unsigned) {
  const auto largest = std::numeric_limits<unsigned long long>::max() >> (8 * (sizeof(long long) - bytes) + (is_unsigned ? 0 : 1));
  return "[" + std::to_string(min) + ", " + (static_cast<unsigned long long>(max) == largest ? "..." : std::to_string(max)) + "]";
}

}  // namespace kvlab
