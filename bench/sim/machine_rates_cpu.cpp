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

// Seconds of the fastest of some runs of f(thread) on all threads at once.
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

// Of n floats in eight streams: a core fetches ahead per page, so one stream alone leaves most of the bandwidth unused.
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

MachineRates measure() {
  MachineRates rates;
  {
    std::vector<std::vector<float>> from(kThreads, std::vector<float>(kFloats, 1.0F)), to(kThreads, std::vector<float>(kFloats));
    const double copied = 2.0 * kThreads * kFloats * sizeof(float);
    rates.copy_bytes_per_s =
        copied / fastest(5, [&](std::size_t i) { std::memcpy(to[i].data(), from[i].data(), kFloats * sizeof(float)); });
    rates.read_bytes_per_s = copied / 2 / fastest(5, [&](std::size_t i) { to[i][0] = sum_in_streams(from[i].data(), kFloats); });
  }
  constexpr Eigen::Index kSize = 1024;
  std::vector<Matrix> a(kThreads, Matrix::Random(kSize, kSize)), b = a, c = a;
  rates.gemm_flops_per_s = 2.0 * kThreads * kSize * kSize * kSize / fastest(40, [&](std::size_t i) { c[i].noalias() = a[i] * b[i]; });
  return rates;
}

}  // namespace

const MachineRates& machine_rates() {
  static const MachineRates rates = measure();
  return rates;
}

MachineRates rates_now() {
  constexpr std::int64_t kAllFloats = 32 << 20, kSomeFloats = kAllFloats / 4;  // one part after the other, so that no cache holds them
  constexpr Eigen::Index kSize = 384;
  static const std::vector<std::vector<float>> from(kThreads, std::vector<float>(kAllFloats, 1.0F));
  static std::vector<Matrix> a(kThreads, Matrix::Random(kSize, kSize)), b = a, c = a;
  static std::int64_t part = 0;
  part = (part + kSomeFloats) % kAllFloats;
  std::array<float, kThreads> sums{};
  MachineRates rates;
  rates.read_bytes_per_s = static_cast<double>(kThreads * kSomeFloats * sizeof(float)) /
                           fastest(1, [&](std::size_t i) { sums[i] = sum_in_streams(from[i].data() + part, kSomeFloats); });
  rates.gemm_flops_per_s = 2.0 * kThreads * kSize * kSize * kSize / fastest(3, [&](std::size_t i) { c[i].noalias() = a[i] * b[i]; });
  return rates;
}

}  // namespace kvlab
