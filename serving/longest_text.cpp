#include "serving/longest_text.h"

#include <algorithm>
#include <cmath>

namespace kvlab {

std::int64_t longest_text(std::string_view rope_type, double factor, std::int64_t original, std::int64_t max_positions) {
  constexpr double kMost = 1 << 28;
  if (rope_type != "linear" && rope_type != "dynamic" && rope_type != "yarn") return max_positions;
  const std::int64_t from = original > 0 ? original : max_positions;
  return std::max(max_positions, static_cast<std::int64_t>(std::min(std::floor(factor * static_cast<double>(from)), kMost)));
}

}  // namespace kvlab
