#include "sim/kv_cost/count_sources.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/random.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

TEST(Counts, ScriptGivesOutWhatWasRecordedAndNamesWhatDoesNotFit) {
  RecordedCounts recorded;
  recorded.begin_step(3);
  std::vector<std::int32_t> counts{5, 7};
  recorded.fill("kept", 2, counts);
  EXPECT_EQ(recorded.entries(), (std::vector<RecordedCounts::Entry>{{"kept", 2, 3, {5, 7}}}));

  ScriptedCounts script(recorded.entries());
  script.begin_step(4);
  std::vector<std::int32_t> three(3, 9), two(2, 9);
  EXPECT_EQ(
      error_of([&] { script.fill("kept", 2, three); }),
      "scripted counts: the run asks for 3 counts of 'kept' in layer 2, step 4, but entry 0 has 2 counts of 'kept' in layer 2, step 3");
  EXPECT_NE(error_of([&] { script.fill("kept", 1, two); }), "no error");
  EXPECT_NE(error_of([&] { script.fill("reused", 2, two); }), "no error");
  script.fill("kept", 2, two);
  EXPECT_EQ(two, counts);
  EXPECT_TRUE(script.used_up());
  EXPECT_EQ(error_of([&] { script.fill("kept", 2, two); }),
            "scripted counts: the run asks for 2 counts of 'kept' in layer 2, step 4, but the 1 recorded entries are used up");
}

// Mean and 95th percentile of what is drawn are those of what was recorded; heads of a sequence stay together.
TEST(Counts, DrawnCountsFollowTheRecordedDistribution) {
  std::vector<RecordedCounts::Entry> entries;
  std::vector<double> recorded, drawn;
  for (std::int64_t i = 0; i < 200; ++i) {
    const double x = Draw{1, Purpose::kTest, static_cast<std::uint64_t>(i), 0}.lognormal(4, 0.5);
    const auto n = static_cast<std::int32_t>(x);
    entries.push_back({"kept", 1, i, {n, 2 * n}});
    entries.push_back({"kept", 0, i, {1, 1}});
    recorded.push_back(n);
  }
  DrawnCounts source(entries, 11), again(entries, 11), other(entries, 12);
  bool differs = false;
  for (std::int64_t step = 0; step < 10000; ++step) {
    std::vector<std::int32_t> counts(4, 1 << 20), same(counts), another(counts);
    source.begin_step(step), again.begin_step(step), other.begin_step(step);
    source.fill("kept", 1, counts), again.fill("kept", 1, same), other.fill("kept", 1, another);
    ASSERT_EQ(counts, same);
    differs |= counts != another || counts[0] != counts[2];
    ASSERT_EQ(counts[1], 2 * counts[0]);
    ASSERT_EQ(counts[3], 2 * counts[2]);
    drawn.push_back(counts[0]), drawn.push_back(counts[2]);
  }
  EXPECT_TRUE(differs);
  const auto mean = [](const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size()); };
  const auto p95 = [](std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() * 95 / 100];
  };
  EXPECT_NEAR(mean(drawn) / mean(recorded), 1, 0.02);
  EXPECT_NEAR(p95(drawn) / p95(recorded), 1, 0.05);

  std::vector<std::int32_t> bounded(2, 3);
  source.fill("kept", 1, bounded);
  EXPECT_LE(std::max(bounded[0], bounded[1]), 3);
  EXPECT_EQ(error_of([&] { source.fill("kept", 7, bounded); }), "drawn counts: nothing was recorded for 'kept' in layer 7");
}

// Layer 0 is settled twice in a step, as where later layers shrink earlier ones; what recording i gave is told by its digits.
TEST(Counts, ADrawnSequenceFollowsOneRecordingThroughLayersTurnsAndSteps) {
  std::vector<RecordedCounts::Entry> entries;
  for (std::int32_t i = 0; i < 10; ++i) {
    RecordedCounts recorded;
    for (std::int32_t step = 0; step < 3; ++step) {
      recorded.begin_step(step);
      const auto settle = [&](int layer, std::int32_t count) { recorded.fill("kept", layer, std::span(&count, 1)); };
      settle(0, 1000 + 100 * step + i), settle(0, 2000 + 100 * step + i), settle(1, 3000 + 100 * step + i);
    }
    entries.insert(entries.end(), recorded.entries().begin(), recorded.entries().end());
  }
  std::set<std::int32_t> chosen;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    DrawnCounts source(entries, seed);
    std::vector<std::int32_t> followed(4, -1);
    for (std::int32_t step = 0; step < 3; ++step) {
      source.begin_step(step);
      for (const auto& [layer, base] : {std::pair{0, 1000}, {0, 2000}, {1, 3000}}) {
        std::vector<std::int32_t> counts(4, 1 << 20);
        source.fill("kept", layer, counts);
        for (std::size_t s = 0; s < 4; ++s) {
          const std::int32_t recording = counts[s] - base - 100 * step;
          if (followed[s] < 0) followed[s] = recording;
          ASSERT_EQ(recording, followed[s]) << "layer " << layer << ", step " << step << ", sequence " << s;
        }
      }
    }
    chosen.insert(followed.begin(), followed.end());
  }
  EXPECT_EQ(chosen.size(), 10U);

  entries = {{"kept", 2, 0, {1}, 1}};
  EXPECT_EQ(error_of([&] { DrawnCounts(entries, 1); }), "drawn counts: 'kept' in layer 2 was recorded at turn 1 before turn 0");
}

}  // namespace
}  // namespace kvlab
