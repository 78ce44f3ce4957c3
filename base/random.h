#pragma once

#include <cstdint>
#include <span>

namespace kvlab {

enum class Purpose : std::uint32_t {
  kArrival,
  kPromptLength,
  kOutputLength,
  kSession,
  kThinkTime,
  kPrefix,
  kContent,
  kRouter,
  kExperts,
  kJitter,
  kTest,
  kBurst,
  kAttention,
  kGumbel,
  kPolicy,
  kMerge,
  kSampling,
  kClient,
  kClass,
  kPrediction,
  kLayers,
  kImages,
  kLabel,
};

// A function of (seed, purpose, request, step, layer). Standard libraries' distributions differ.
struct Draw {
  std::uint64_t seed = 0;
  Purpose purpose = Purpose::kTest;
  std::uint64_t request = 0;
  std::uint64_t step = 0;
  std::uint64_t layer = 0;

  [[nodiscard]] std::uint64_t bits() const;
  [[nodiscard]] double uniform() const;                      // [0, 1), 53 bits
  [[nodiscard]] std::uint64_t below(std::uint64_t n) const;  // [0, n), n > 0, unbiased to 2^-64 * n
  [[nodiscard]] double exponential(double mean) const;
  [[nodiscard]] double normal() const;                            // mean 0, deviation 1
  [[nodiscard]] double lognormal(double mu, double sigma) const;  // of the logarithm
  [[nodiscard]] double gamma(double shape, double scale) const;   // Marsaglia and Tsang 2000
  [[nodiscard]] double weibull(double shape, double scale) const;
};

// k in [1, n] with P(k) ~ k^-s by rejection-inversion (Hoermann and Derflinger 1996). s >= 0, n >= 1.
class Zipf {
 public:
  Zipf(std::uint64_t n, double s);
  [[nodiscard]] std::uint64_t operator()(Draw draw) const;

 private:
  [[nodiscard]] double h(double x) const;
  [[nodiscard]] double h_inverse(double x) const;
  std::uint64_t n_;
  double s_, h_x1_, h_n_, threshold_;
};

// Normal numbers (mean 0, deviation 0.9997, at most 3.7), about a nanosecond each: midpoint quantiles of 4096 equal shares. Number i is a
// function of the draw and i.
class NormalStream {
 public:
  explicit NormalStream(Draw draw) : key_(draw.bits()) {}
  // From `first`, a multiple of 4.
  void fill(std::uint64_t first, std::span<float> to) const;

 private:
  std::uint64_t key_;
};

}  // namespace kvlab
