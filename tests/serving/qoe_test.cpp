#include "serving/qoe.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace kvlab {
namespace {

constexpr RequestId kSlot{2};
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

}  // namespace
}  // namespace kvlab
