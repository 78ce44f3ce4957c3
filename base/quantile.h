#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvlab {

// Quantile `frac`, interpolated between ranks; 0 if empty.
template <class T>
double quantile_of_sorted(const std::vector<T>& sorted, double frac) {
  if (sorted.empty()) return 0;
  const double rank = frac * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const auto low = static_cast<double>(sorted[below]), high = static_cast<double>(sorted[std::min(below + 1, sorted.size() - 1)]);
  return low + (rank - static_cast<double>(below)) * (high - low);
}

// Mean of the two middle values for even sizes; not empty.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// The larger middle value for even sizes.
inline double upper_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace kvlab
