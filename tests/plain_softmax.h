#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

// The formulas of attention as plain loops, in double.
namespace kvlab {

inline double plain_dot(const float* a, const float* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

// Turns logits into probabilities, 0 where all are -infinity. Returns the log of the sum of their exponentials.
inline double plain_softmax(std::vector<double>& z) {
  const double top = z.empty() ? -INFINITY : *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (double& x : z) x = top == -INFINITY ? 0 : std::exp(x - top), sum += x;
  for (double& x : z) x = sum == 0 ? 0 : x / sum;
  return top + std::log(sum);
}

}  // namespace kvlab
