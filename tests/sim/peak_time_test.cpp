#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "sim/cost_totals.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

// A model of which PeakTime reads peaks and stages alone.
class Peaks final : public StubCost {
 public:
  Peaks(double flops, double bytes_per_s, int stages = 1) : flops_(flops), bytes_per_s_(bytes_per_s), stages_(stages) {}
  [[nodiscard]] int num_stages() const override { return stages_; }
  [[nodiscard]] double peak_flops() const override { return flops_; }
  [[nodiscard]] double peak_bytes_per_s() const override { return bytes_per_s_; }

 private:
  double flops_, bytes_per_s_;
  int stages_;
};

StepCost step_of(std::int64_t flops, std::int64_t bytes, std::int64_t ps) {
  StepCost cost;
  cost.flops = flops;
  cost.bytes = bytes;
  cost.total = Picoseconds(ps);
  return cost;
}

constexpr std::int64_t kPsPerMs = 1'000'000'000;

TEST(PeakTime, TheLongerOfFlopsAndBytesUpToTheStep) {
  for (const int stages : {1, 2}) {
    PeakTime time(Peaks(1e9, 2e9, stages));
    time.add(step_of(4'000'000, 2'000'000, 10 * kPsPerMs), {}, 1);  // 4 ms of FLOPs, 1 ms of bytes
    time.add(step_of(1'000'000, 6'000'000, 10 * kPsPerMs), {}, 1);  // 1 ms, 3 ms
    time.add(step_of(50'000'000, 0, 10 * kPsPerMs), {}, 1);         // above the datasheet: the whole step, in which a stage is busy once
    EXPECT_DOUBLE_EQ(time.seconds(), (4 + 3 + 10.0 / stages) * 1e-3);
  }
  PeakTime none(Peaks(0, 2e9));
  none.add(step_of(1000, 1000, 1000), {}, 1);
  EXPECT_EQ(none.seconds(), 0) << "no peak, no share of it";
}

// Along a stretch each of the three may take over from another.
TEST(PeakTime, AStretchIsTheSumOfItsSteps) {
  const Peaks peaks(1e9, 2e9);
  std::uint64_t changes = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    const auto draw = [&](std::uint64_t step, std::uint64_t most) {
      return static_cast<std::int64_t>(Draw{seed, Purpose::kTest, 0, step, 0}.below(most));
    };
    const std::int64_t n = 1 + draw(0, 300);
    const StepCost base = step_of(draw(1, 1'000'000), draw(2, 2'000'000), draw(3, kPsPerMs));
    const StepCost slope =
        step_of((draw(4, 1'000'000) - base.flops) / n, (draw(5, 2'000'000) - base.bytes) / n, (draw(6, kPsPerMs) - base.total.count()) / n);
    PeakTime whole(peaks), single(peaks), parts(peaks);
    double sum = 0;
    int before = -1;
    for (std::int64_t i = 0; i < n; ++i) {
      const StepCost one = step_of(base.flops + i * slope.flops, base.bytes + i * slope.bytes, (base.total + i * slope.total).count());
      single.add(one, {}, 1);
      const double flops_s = static_cast<double>(one.flops) / 1e9, bytes_s = static_cast<double>(one.bytes) / 2e9, s = to_s(one.total);
      sum += std::min(s, std::max(flops_s, bytes_s));
      const int bound = s < std::max(flops_s, bytes_s) ? 2 : flops_s >= bytes_s ? 0 : 1;
      changes += before >= 0 && bound != before ? 1 : 0;
      before = bound;
    }
    whole.add(base, slope, n);
    const std::int64_t cut = draw(7, static_cast<std::uint64_t>(n));
    PeakTime rest(peaks);
    parts.add(base, slope, cut);
    rest.add(step_of(base.flops + cut * slope.flops, base.bytes + cut * slope.bytes, (base.total + cut * slope.total).count()), slope,
             n - cut);
    parts.merge(rest);
    ASSERT_EQ(whole.seconds(), single.seconds()) << "seed " << seed;
    ASSERT_EQ(whole.seconds(), parts.seconds()) << "seed " << seed;
    ASSERT_NEAR(whole.seconds(), sum, 1e-12 * static_cast<double>(n)) << "seed " << seed;
  }
  EXPECT_GT(changes, 1000U);
}

// One request: a prompt of 10 tokens and two decode steps of one. LinearCost has 1000 FLOPs per token, 7 bytes per cached token and peaks
// of 1e12: 10 ns for the prompt, 1 ns for each decode step, whose bytes take 70 and 77 ps.
TEST(PeakTime, OfATinyRun) {
  const RunSummary summary = summary_of(basic_setup("sarathi"), {request_at(0, 10, 3)});
  EXPECT_DOUBLE_EQ(summary.peak_s, 12e-9);
  EXPECT_EQ(summary.output_tokens, 3);
}

}  // namespace
}  // namespace kvlab::testing
