#pragma once

#include <cstddef>
#include <string>

namespace kvlab {

// "[min, max]", or "[min, ...]" if max is the maximum of the type, which has `bytes` bytes.
std::string range_text(double min, double max, std::size_t bytes);
std::string range_text(long long min, long long max, std::size_t bytes, bool is_unsigned);

}  // namespace kvlab
