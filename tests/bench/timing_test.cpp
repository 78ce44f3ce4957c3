// How times are taken, on a device whose time is made up.
#include "calibrate/cases/timing.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/bench/fake_device.h"

namespace kvlab {

namespace {

class FakeCase final : public PreparedCase {
 public:
  explicit FakeCase(std::int64_t copies) : copies_(copies) {}
  void run(std::int64_t call) override { seen.insert(call % copies_), ++calls; }
  [[nodiscard]] std::int64_t copies() const override { return copies_; }
  bool matches() override { return true; }
  [[nodiscard]] std::int64_t bytes() const override { return 1; }
  [[nodiscard]] std::int64_t flops() const override { return 1; }
  std::set<std::int64_t> seen;
  std::int64_t calls = 0;

 private:
  std::int64_t copies_;
};

TEST(Timing, IsTheMedianOfOneCallWithTheQuartilesAsSpread) {
  // Samples 2, 3, ... take 10, 11, 12, 13, 14, 10, ... us a call; the first two are warm-up and slow.
  FakeDevice device([](std::int64_t i, std::int64_t calls) {
    return TimedDevice::Sample{static_cast<double>(calls) * (i < 2 ? 500e-6 : (10 + static_cast<double>((i - 2) % 5)) * 1e-6), 0};
  });
  FakeCase fake(1);
  const Timing t = time_case(fake, device, {0, 25, 25});
  EXPECT_EQ(t.samples, 25);
  EXPECT_NEAR(t.seconds, 12e-6, 1e-12);
  EXPECT_NEAR(t.spread_frac, 2.0 / 12, 1e-9);
  EXPECT_NEAR(t.mean_frac, 1, 1e-9);
}

TEST(Timing, AStallMovesTheMeanAndNotTheMedian) {
  FakeDevice device([](std::int64_t i, std::int64_t calls) {
    return TimedDevice::Sample{static_cast<double>(calls) * (i == 7 ? 1e-3 : 1e-5), 0};
  });
  FakeCase fake(1);
  const Timing t = time_case(fake, device, {0, 25, 25});
  EXPECT_NEAR(t.seconds, 1e-5, 1e-12);
  EXPECT_NEAR(t.mean_frac, (24 + 100) / 25.0, 1e-9);
}

TEST(Timing, ShortCallsAreTimedTogetherAndGoThroughAllCopies) {
  FakeDevice device([](std::int64_t, std::int64_t calls) { return TimedDevice::Sample{static_cast<double>(calls) * 2e-6, 0}; });
  FakeCase fake(100);
  const Timing t = time_case(fake, device, {0, 10, 10, 50e-6});
  EXPECT_EQ(t.calls_per_sample, 25);
  EXPECT_NEAR(t.seconds, 2e-6, 1e-12);
  EXPECT_EQ(fake.seen.size(), 100U);
}

TEST(Timing, TheFirstPassOverTheCopiesIsNotCounted) {
  // Fresh copies are slow: each of the first 100 calls.
  const FakeDevice::Clock clock = [](std::int64_t i, std::int64_t calls) {
    return TimedDevice::Sample{static_cast<double>(calls) * (i < 100 ? 1e-3 : 1e-4), 0};
  };
  FakeDevice device(clock);
  FakeCase fake(100);
  TimingPlan plan{0, 10, 10};
  plan.warm_up_seconds = 1;
  EXPECT_NEAR(time_case(fake, device, plan).seconds, 1e-4, 1e-12);
  EXPECT_EQ(fake.calls, 110);
  plan.warm_up_seconds = 0.02;  // 20 of the copies
  FakeDevice again(clock);
  FakeCase other(100);
  EXPECT_NEAR(time_case(other, again, plan).seconds, 1e-3, 1e-12);
  EXPECT_EQ(other.calls, 30);
}

TEST(Timing, SamplesAtALowClockAreThrownAway) {
  FakeDevice device([](std::int64_t i, std::int64_t calls) {
    const bool is_low = i % 3 == 0;
    return TimedDevice::Sample{static_cast<double>(calls) * (is_low ? 20e-6 : 10e-6), is_low ? 0.9 : 1.8};
  });
  FakeCase fake(1);
  const Timing t = time_case(fake, device, {0, 30, 30});
  EXPECT_EQ(t.samples, 20);
  EXPECT_EQ(t.discarded, 10);
  EXPECT_EQ(t.spread_frac, 0);
}

TEST(Timing, WhereTheClockIsMostlyLowNothingIsThrownAway) {
  FakeDevice device([](std::int64_t i, std::int64_t calls) {
    return TimedDevice::Sample{static_cast<double>(calls) * 1e-5, i % 4 == 0 ? 1.8 : 0.9};
  });
  FakeCase fake(1);
  EXPECT_EQ(time_case(fake, device, {0, 20, 20}).discarded, 0);
}

TEST(Timing, EndsWithTheTimeAllowed) {
  FakeDevice device([](std::int64_t, std::int64_t calls) { return TimedDevice::Sample{static_cast<double>(calls) * 1e-2, 0}; });
  FakeCase fake(1);
  EXPECT_EQ(time_case(fake, device, {0.095, 3, 2000}).samples, 10);
  EXPECT_EQ(time_case(fake, device, {0.01, 3, 2000}).samples, 3) << "the least";
}

}  // namespace

}  // namespace kvlab
