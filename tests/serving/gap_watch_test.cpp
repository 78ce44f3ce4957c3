#include "serving/gap_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "serving/metrics.h"
#include "serving/qoe.h"
#include "serving/timeline_sampling.h"
#include "tests/has_all.h"

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

constexpr std::int64_t kMs = 1'000'000'000;  // ps
const ExpectedText kFourPerSecond{Span(1'000'000'000), Span(250'000'000)};

double qoe_of(const std::vector<std::int64_t>& delivered_ms, const RequestFacts* facts = nullptr) {
  QoeWatch watch(&kFourPerSecond);
  RequestRecord r;
  r.arrival = kStart + Span(5'000'000'000);
  r.facts = facts;
  watch.begin(kSlot, r);
  for (const std::int64_t at : delivered_ms) watch.add(kSlot, Picoseconds((5000 + at) * kMs));
  return watch.qoe(kSlot);
}

// Expected at 1000, 1250, 1500 and 1750 ms after arrival; by hand.
TEST(Qoe, IsOneMinusTheAreaOfTheLag) {
  EXPECT_DOUBLE_EQ(qoe_of({1000, 1250, 1500, 1750}), 1);
  EXPECT_DOUBLE_EQ(qoe_of({0, 0, 0, 0}), 1) << "nothing is gained by text that is not read yet";
  EXPECT_DOUBLE_EQ(qoe_of({2000, 2250, 2500, 2750}), 1 - 4.0 / (2 + 4));
  EXPECT_DOUBLE_EQ(qoe_of({2000, 2000, 2000, 2000}), 1 - 4.0 / (2 + 4)) << "the user reads on at the pace of the line";
  EXPECT_DOUBLE_EQ(qoe_of({1000, 1000, 2000, 2000}), 1 - (0.5 + 0.5) / (2 + 4 * 0.5)) << "the stall comes after text in hand";
  EXPECT_DOUBLE_EQ(qoe_of({2000}), 1 - 1 / (0.125 + 1));
  EXPECT_GT(qoe_of({1'000'000, 9'000'000}), 0);
}

TEST(Qoe, ARequestsOwnTargetsAreItsLine) {
  RequestFacts facts;
  facts.ttft_slo = Span(2'000'000'000);
  EXPECT_DOUBLE_EQ(qoe_of({2000, 2250, 2500, 2750}, &facts), 1);
  facts.tpot_slo = Span(100'000'000);
  EXPECT_DOUBLE_EQ(qoe_of({2000, 2250}, &facts), 1 - 0.15 / (4 * 0.1 / 2 + 2 * 0.15));
  facts.tpot_slo = Span{0};
  EXPECT_DOUBLE_EQ(qoe_of({2000, 2250}, &facts), 1) << "a pace of 0 is none";
}

// Fast-forward needs this, for gaps that grow, shrink or stay.
TEST(Qoe, AStretchIsItsTokensOneByOne) {
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const auto draw = [&](std::uint64_t step, std::uint64_t below) {
      return static_cast<std::int64_t>(Draw{8, Purpose::kTest, i, step, 0}.below(below));
    };
    const ExpectedText text{Span(draw(0, 3000)), Span(1 + draw(1, 100))};
    QoeWatch whole(&text), single(&text);
    for (QoeWatch* watch : {&whole, &single}) watch->begin(kSlot, RequestRecord{});
    Picoseconds at(draw(2, 4'000'000));
    for (std::int64_t stretch = 0; stretch < 4; ++stretch) {
      const auto of = [&](std::uint64_t step, std::uint64_t below) {
        return draw(10 * static_cast<std::uint64_t>(stretch + 1) + step, below);
      };
      StretchGaps gaps;
      for (std::int64_t k = of(0, 3); k > 0; --k) gaps.single.emplace_back(of(1, 100'000));
      gaps.terms = of(2, 60);
      gaps.step = Picoseconds(of(3, 3000) - (i % 3 == 0 ? 1500 : 0));
      gaps.first = Picoseconds(of(4, 100'000) + 1500 * gaps.terms);
      whole.add(kSlot, at);
      whole.add(kSlot, at, gaps);
      single.add(kSlot, at);
      for (const Picoseconds gap : gaps.single) single.add(kSlot, at += gap);
      for (std::int64_t k = 0; k < gaps.terms; ++k) single.add(kSlot, at += gaps.first + k * gaps.step);
      ASSERT_EQ(whole.qoe(kSlot), single.qoe(kSlot)) << "list " << i << ", stretch " << stretch;
      at += Picoseconds(of(5, 100'000));
    }
  }
}

constexpr Picoseconds kSampleMs = to_ps(Span(1'000'000));

TEST(TimelineSampling, KeepsTheIntervalUpToItsMostRows) {
  TimelineSampling samples(kSampleMs, 2, 100);
  for (int i = 0; i < 49; ++i) samples.note(kSampleMs * i);
  EXPECT_EQ(samples.interval(), kSampleMs);
  EXPECT_EQ(samples.remark(kSampleMs * 49), "");
}

// 100 rows at 1 ms, of 2 rows each; then 10 rows at 2 ms, 10 at 4 ms and so on.
TEST(TimelineSampling, DoublesTheIntervalAfterThem) {
  TimelineSampling samples(kSampleMs, 2, 100);
  Picoseconds at;
  int rows = 0;
  for (; at < kSampleMs * 100'000; at = at + samples.interval()) {
    samples.note(at);
    rows += 2;
    if (rows == 100 || rows == 110) {
      EXPECT_EQ(samples.interval(), kSampleMs * (rows == 100 ? 2 : 4));
    }
  }
  EXPECT_LT(rows, 300) << "and not 200,000";
  const std::string remark = samples.remark(kSampleMs * 100'000);
  EXPECT_THAT(remark, has_all({"samples are 1 ms apart up to 0.049 s", "'timeline_interval_ms: 2000' fits"}));
}

TEST(TimelineSampling, NoIntervalMeansNoSamples) { EXPECT_FALSE(TimelineSampling(Picoseconds{}, 1, 100).is_on()); }

}  // namespace
}  // namespace kvlab
