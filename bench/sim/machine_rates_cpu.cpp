#include <Eigen/Core>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/sim/machine_rates.h"

namespace kvlab {

namespace {

constexpr int kThreads = 2;
constexpr std::int64_t kFloats = 64 << 20;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Best of `repeats` runs of f(thread) on all threads.
template <class F>
double fastest(int repeats, F&& f) {
  double best = 1e30;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < kThreads; ++i) threads.emplace_back([&f, i] { f(static_cast<std::size_t>(i)); });
    }
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// In eight streams: cores prefetch per page.
float sum_in_streams(const float* x, std::int64_t n) {
  using Line = Eigen::Array<float, 16, 1>;
  constexpr std::int64_t kStreams = 8;
  const std::int64_t each = n / kStreams;
  std::array<Line, kStreams> sums;
  sums.fill(Line::Zero());
  for (std::int64_t i = 0; i < each; i += 32)
    for (std::int64_t s = 0; s < kStreams; ++s)
      sums[static_cast<std::size_t>(s)] += Eigen::Map<const Line>(x + s * each + i) + Eigen::Map<const Line>(x + s * each + i + 16);
  float total = 0.0F;
  for (const Line& sum : sums) total += sum.sum();
  return total;
}

// Bytes per second of summing n floats per thread.
double read_rate(int repeats, const std::vector<std::vector<float>>& from, std::int64_t begin, std::int64_t n) {
  std::array<float, kThreads> sums{};
  return static_cast<double>(kThreads * n) * sizeof(float) /
         fastest(repeats, [&](std::size_t i) { sums[i] = sum_in_streams(from[i].data() + begin, n); });
}

// One square matrix product per thread.
class Product {
 public:
  explicit Product(Eigen::Index size) : size_(static_cast<double>(size)), a_(kThreads, Matrix::Random(size, size)), b_(a_), c_(a_) {}
  // FLOPs per second.
  double rate(int repeats) {
    return 2.0 * kThreads * size_ * size_ * size_ / fastest(repeats, [&](std::size_t i) { c_[i].noalias() = a_[i] * b_[i]; });
  }

 private:
  double size_;
  std::vector<Matrix> a_, b_, c_;
};

MachineRates measure() {
  MachineRates rates;
  {
    std::vector<std::vector<float>> from(kThreads, std::vector<float>(kFloats, 1.0F)), to(kThreads, std::vector<float>(kFloats));
    const double copied = 2.0 * kThreads * kFloats * sizeof(float);
    rates.copy_bytes_per_s =
        copied / fastest(5, [&](std::size_t i) { std::memcpy(to[i].data(), from[i].data(), kFloats * sizeof(float)); });
    rates.read_bytes_per_s = read_rate(5, from, 0, kFloats);
  }
  rates.gemm_flops_per_s = Product(1024).rate(40);
  return rates;
}

}  // namespace

const MachineRates& machine_rates() {
  static const MachineRates rates = measure();
  return rates;
}

MachineRates rates_now() {
  constexpr std::int64_t kAllFloats = 32 << 20, kSomeFloats = kAllFloats / 4;  // parts in turn, so that no cache holds them
  static const std::vector<std::vector<float>> from(kThreads, std::vector<float>(kAllFloats, 1.0F));
  static Product product(384);
  static std::int64_t part = 0;
  part = (part + kSomeFloats) % kAllFloats;
  MachineRates rates;
  rates.read_bytes_per_s = read_rate(1, from, part, kSomeFloats);
  rates.gemm_flops_per_s = product.rate(3);
  return rates;
}

}  // namespace kvlab
