#include "serving/timeline_sampling.h"

#include "tests/has_all.h"

namespace kvlab {
namespace {

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
