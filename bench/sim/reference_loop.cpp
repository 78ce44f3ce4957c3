#include "bench/sim/reference_loop.h"

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace kvlab {

namespace {

struct Line {
  std::uint32_t next;
  std::uint32_t padding[15];
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double measure_reads() {
  constexpr std::uint32_t kLines = (64U << 20) / sizeof(Line);
  constexpr int kReads = 4'000'000;
  std::vector<Line> lines(kLines);
  std::vector<std::uint32_t> order(kLines);
  std::iota(order.begin(), order.end(), 0U);
  for (std::uint32_t i = kLines - 1; i > 0; --i) std::swap(order[i], order[Draw{7, Purpose::kTest, i, 0, 0}.below(i)]);  // one cycle
  for (std::uint32_t i = 0; i < kLines; ++i) lines[order[i]].next = order[(i + 1) % kLines];
  std::uint32_t at = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kReads; ++i) at = lines[at].next;
  benchmark::DoNotOptimize(at);
  return kReads / seconds_since(start);
}

double measure_adds() {
  constexpr int kAdds = 200'000'000;
  std::uint64_t x = 1;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kAdds; i += 2) {
    x += static_cast<std::uint64_t>(i);
    benchmark::DoNotOptimize(x);
    x ^= x << 1;
  }
  benchmark::DoNotOptimize(x);
  return kAdds / seconds_since(start);
}

}  // namespace

const ReferenceRates& reference_rates() {
  static const ReferenceRates rates{measure_reads(), measure_adds()};
  return rates;
}

}  // namespace kvlab
