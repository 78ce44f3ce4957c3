#include "serving/gap_watch.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "serving/metrics.h"

namespace kvlab {
namespace {

constexpr RequestId kSlot{3};

// The target in nanoseconds.
SloTarget tbt_target(std::int64_t limit_ns, std::int32_t ppm) {
  SloTarget target = SloTarget::none();
  target.tbt = Span(limit_ns);
  target.tbt_ppm = ppm;
  return target;
}

Request request_of(std::int32_t output_tokens) {
  Request r;
  r.output_limit = output_tokens;
  return r;
}

TEST(StretchGaps, AreCountedLikeTheirMembers) {
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto draw = [&](std::uint64_t step) { return Draw{5, Purpose::kTest, i, step, 0}; };
    StretchGaps gaps;
    for (std::uint64_t k = draw(0).below(3); k > 0; --k) gaps.single.emplace_back(static_cast<std::int64_t>(draw(10 + k).below(200)));
    gaps.terms = static_cast<std::int64_t>(draw(1).below(30));
    const auto step = static_cast<std::int64_t>(draw(2).below(11)) - 5;
    gaps.step = Picoseconds(step);
    gaps.first = Picoseconds(static_cast<std::int64_t>(draw(3).below(200)) + std::max<std::int64_t>(0, -step) * gaps.terms);
    const Picoseconds limit(static_cast<std::int64_t>(draw(4).below(300)));
    std::int64_t longer = 0;
    for (const Picoseconds gap : gaps.single) longer += gap > limit ? 1 : 0;
    for (std::int64_t k = 0; k < gaps.terms; ++k) longer += gaps.first + k * gaps.step > limit ? 1 : 0;
    ASSERT_EQ(gaps.longer_than(limit), longer) << "list " << i;
  }
}

// The quantile by nearest rank, from the sorted gaps themselves: the smallest gap that at least that share of them do not exceed.
TEST(GapWatch, MissesWhenTheQuantileIsAboveTheLimit) {
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto draw = [&](std::uint64_t step) { return Draw{6, Purpose::kTest, i, step, 0}; };
    const std::int32_t ppms[] = {500'000, 900'000, 990'000, 999'000, 1'000'000};
    const std::int32_t ppm = ppms[draw(0).below(5)];
    const auto num = static_cast<std::int64_t>(1 + draw(1).below(i % 2 == 0 ? 12 : 300));
    GapWatch watch;
    Request r = request_of(static_cast<std::int32_t>(num) + 1);
    watch.begin(kSlot, r, tbt_target(100, ppm));
    std::vector<std::int64_t> gaps;
    for (std::int64_t k = 0; k < num; ++k) {
      const bool is_late = draw(static_cast<std::uint64_t>(100 + k)).uniform() < 1.1 * (1 - ppm * 1e-6);
      gaps.push_back(is_late ? 100'001 : 100'000);  // ps: just above the limit, and at it
      watch.add(kSlot, r, Picoseconds(gaps.back()));
    }
    std::sort(gaps.begin(), gaps.end());
    const std::int64_t rank = (num * ppm + 999'999) / 1'000'000;
    EXPECT_EQ(r.gaps == GapState::kMissed, gaps[static_cast<std::size_t>(rank - 1)] > 100'000) << ppm << " of " << num;
  }
}

TEST(GapWatch, AStretchIsItsGapsOneByOne) {
  for (std::uint64_t i = 0; i < 500; ++i) {
    const auto draw = [&](std::uint64_t step) { return Draw{7, Purpose::kTest, i, step, 0}; };
    const SloTarget target = tbt_target(100, 700'000);
    GapWatch whole, single;
    Request a = request_of(40), b = request_of(40);
    whole.begin(kSlot, a, target);
    single.begin(kSlot, b, target);
    const Picoseconds first(static_cast<std::int64_t>(draw(0).below(200'000)));
    StretchGaps gaps;
    gaps.single = {Picoseconds(static_cast<std::int64_t>(draw(1).below(200'000)))};
    gaps.first = Picoseconds(static_cast<std::int64_t>(draw(2).below(120'000)));
    gaps.step = Picoseconds(1000);
    gaps.terms = 20;
    whole.add(kSlot, a, first, gaps);
    single.add(kSlot, b, first);
    single.add(kSlot, b, gaps.single[0]);
    for (std::int64_t k = 0; k < gaps.terms; ++k) single.add(kSlot, b, gaps.first + k * gaps.step);
    ASSERT_EQ(a.gaps, b.gaps) << "list " << i;
  }
}

TEST(GapWatch, IsOffWithoutTargetsAndForgetsTheLastRequestOfASlot) {
  GapWatch watch;
  Request plain = request_of(10), strict = request_of(10);
  watch.begin(kSlot, plain, SloTarget{});
  watch.begin(kSlot, plain, SloTarget::none());
  EXPECT_FALSE(watch.is_on());
  watch.begin(kSlot, strict, tbt_target(100, 1'000'000));
  EXPECT_TRUE(watch.is_on());
  EXPECT_EQ(strict.gaps, GapState::kLastChance) << "no gap may be late";
  watch.add(kSlot, strict, Picoseconds(100'001));
  EXPECT_EQ(strict.gaps, GapState::kMissed);
  watch.begin(kSlot, plain, SloTarget{});
  watch.add(kSlot, plain, Picoseconds(1'000'000'000));
  watch.add(kSlot, plain, Picoseconds(1'000'000'000), StretchGaps{{}, Picoseconds(1'000'000'000), {}, 5});
  EXPECT_EQ(plain.gaps, GapState::kWithin);
  Request one_token = request_of(1);
  watch.begin(kSlot, one_token, tbt_target(0, 1'000'000));
  EXPECT_NE(one_token.gaps, GapState::kMissed) << "it has no gap";
}

}  // namespace
}  // namespace kvlab
