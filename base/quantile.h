#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvlab {

// The value below which a share `frac` of the sorted values is, between two of them where it is no rank; 0 without values.
template <class T>
double quantile_of_sorted(const std::vector<T>& sorted, double frac) {
  if (sorted.empty()) return 0;
  const double rank = frac * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const auto low = static_cast<double>(sorted[below]), high = static_cast<double>(sorted[std::min(below + 1, sorted.size() - 1)]);
  return low + (rank - static_cast<double>(below)) * (high - low);
}

// The value in the middle; of an even number of values the mean of the two there. At least one value is needed.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// For an even number of values the larger of the two in the middle, which is one of the values.
inline double upper_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace kvlab
