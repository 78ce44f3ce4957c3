#include "base/normal_stream.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "base/hash.h"

namespace kvlab {

namespace {

constexpr std::size_t kShares = 4096;

// By bisection: slow, exact to a float's last bits.
double normal_quantile(double p) {
  double low = -8, high = 8;
  for (int step = 0; step < 60; ++step) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle * 0.70710678118654752440) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

const std::array<float, kShares>& quantiles() {
  static const std::array<float, kShares> table = [] {
    std::array<float, kShares> made{};
    for (std::size_t i = 0; i < kShares / 2; ++i) {
      made[i] = static_cast<float>(normal_quantile((static_cast<double>(i) + 0.5) / static_cast<double>(kShares)));
      made[kShares - 1 - i] = -made[i];
    }
    return made;
  }();
  return table;
}

}  // namespace

void NormalStream::fill(std::uint64_t first, std::span<float> to) const {
  const std::array<float, kShares>& table = quantiles();
  std::uint64_t counter = first / 4;
  for (std::size_t i = 0; i < to.size(); ++counter) {
    std::uint64_t bits = mix64(key_ ^ mix64(counter));
    for (int part = 0; part < 4 && i < to.size(); ++part, ++i) {
      to[i] = table[bits & (kShares - 1)];
      bits >>= 16;
    }
  }
}

}  // namespace kvlab
