#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace kvlab {

// Element i of a vector or an array, for an index with a sign.
template <class Elements>
decltype(auto) nth(Elements&& all, std::int64_t i) {
  return all[static_cast<std::size_t>(i)];
}

namespace test {

using Ints = std::vector<std::int32_t>;

inline Ints range(std::int32_t begin, std::int32_t end) {
  Ints all(static_cast<std::size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

// In double precision.
template <class A, class B>
double dot(const A* a, const B* b, std::int32_t n) {
  double sum = 0;
  for (std::int32_t c = 0; c < n; ++c) sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
  return sum;
}
inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// The largest difference; infinite where a number is not finite.
inline double most_apart(const float* a, const float* b, std::int64_t n) {
  double most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = std::abs(double{a[i]} - double{b[i]});
    if (!(x <= most)) most = std::isfinite(x) ? x : HUGE_VAL;
  }
  return most;
}
inline double most_apart(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() ? most_apart(a.data(), b.data(), std::ssize(a)) : HUGE_VAL;
}

inline std::vector<double> softmax(std::vector<double> z) {
  double sum = 0;
  for (double& x : z) sum += x = std::exp(x);
  for (double& x : z) x /= sum;
  return z;
}

}  // namespace test
}  // namespace kvlab
