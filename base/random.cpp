#include "base/random.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "base/hash.h"

namespace kvlab {

namespace {

// The i-th number, for rejection.
std::uint64_t substream(const Draw& d, std::uint64_t i) { return mix64(d.bits() ^ mix64(i + 0x5851f42d4c957f2dULL)); }

double to_unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }
double to_unit_open(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53; }

double normal_from(std::uint64_t a, std::uint64_t b) {  // Box and Muller 1958
  constexpr double kTwoPi = 6.283185307179586476925;
  return std::sqrt(-2.0 * std::log(to_unit_open(a))) * std::cos(kTwoPi * to_unit(b));
}

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

std::uint64_t Draw::bits() const {
  std::uint64_t h = hash_combine(seed, static_cast<std::uint64_t>(purpose));
  h = hash_combine(h, request);
  h = hash_combine(h, step);
  return hash_combine(h, layer);
}

double Draw::uniform() const { return to_unit(bits()); }

std::uint64_t Draw::below(std::uint64_t n) const {  // Lemire 2019: multiply and take the high half
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(bits()) * n) >> 64);
}

double Draw::exponential(double mean) const { return -mean * std::log(to_unit_open(bits())); }

double Draw::normal() const { return normal_from(substream(*this, 0), substream(*this, 1)); }

double Draw::lognormal(double mu, double sigma) const { return std::exp(mu + sigma * normal()); }

double Draw::gamma(double shape, double scale) const {
  double boost = 1.0;
  double k = shape;
  if (k < 1.0) {  // Gamma(k) = Gamma(k + 1) * U^(1/k)
    boost = std::pow(to_unit_open(substream(*this, 0)), 1.0 / k);
    k += 1.0;
  }
  const double d = k - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (std::uint64_t i = 1;; i += 3) {
    const double x = normal_from(substream(*this, i), substream(*this, i + 1));
    const double v = std::pow(1.0 + c * x, 3);
    if (v <= 0.0) continue;
    const double u = to_unit_open(substream(*this, i + 2));
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return boost * d * v * scale;
  }
}

double Draw::weibull(double shape, double scale) const { return scale * std::pow(-std::log(to_unit_open(bits())), 1.0 / shape); }

Zipf::Zipf(std::uint64_t n, double s)
    : n_(n), s_(s), h_x1_(h(1.5) - 1.0), h_n_(h(static_cast<double>(n) + 0.5)), threshold_(2.0 - h_inverse(h(2.5) - std::pow(2.0, -s))) {}

double Zipf::h(double x) const {  // integral of x^-s, continuous at s = 1
  const double log_x = std::log(x);
  const double t = (1.0 - s_) * log_x;
  return (std::abs(t) > 1e-8 ? std::expm1(t) / t : 1.0 + t / 2.0) * log_x;
}

double Zipf::h_inverse(double x) const {
  const double t = std::fmax(x * (1.0 - s_), -1.0);
  return std::exp((std::abs(t) > 1e-8 ? std::log1p(t) / t : 1.0 - t / 2.0) * x);
}

std::uint64_t Zipf::operator()(Draw draw) const {
  for (std::uint64_t i = 0;; ++i) {
    const double u = h_n_ + to_unit(substream(draw, i)) * (h_x1_ - h_n_);
    const double x = h_inverse(u);
    const double k = std::fmin(std::fmax(std::floor(x + 0.5), 1.0), static_cast<double>(n_));
    if (k - x <= threshold_ || u >= h(k + 0.5) - std::pow(k, -s_)) return static_cast<std::uint64_t>(k);
  }
}

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
