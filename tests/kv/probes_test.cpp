#include "policies/kv/format/probes.h"

#include <gtest/gtest.h>

#include <set>

namespace kvlab {
namespace {

std::set<std::int32_t> positions(const Probes& probes, std::int32_t prompt, std::int32_t begin, std::int32_t end) {
  std::set<std::int32_t> at;
  std::int32_t last = -1;
  for (const Probes::Range& r : probes.ranges({0, begin, end - begin, prompt, -1}, begin, end)) {
    EXPECT_LT(last, r.begin) << "ranges are apart";
    EXPECT_LT(r.begin, r.end);
    for (std::int32_t p = r.begin; p < r.end; ++p) at.insert(p);
    last = r.end;
  }
  return at;
}

// Prompt of 1000 tokens, a tenth of each kind: the newest 100, and a run of 8 in each stretch of 80.
TEST(Probes, OfThePromptByHand) {
  const std::set<std::int32_t> at = positions({0.1, 100}, 1000, 0, 1000);
  for (std::int32_t p = 900; p < 1000; ++p) EXPECT_TRUE(at.contains(p)) << p;
  for (std::int32_t stretch = 0; stretch < 880; stretch += 80) {
    const auto first = at.lower_bound(stretch);
    ASSERT_LE(*first, stretch + 72);
    for (std::int32_t p = *first; p < *first + 8; ++p) EXPECT_TRUE(at.contains(p)) << p;
    EXPECT_EQ(std::distance(first, at.lower_bound(stretch + 80)), 8) << "stretch at " << stretch;
  }
}

// Decode: the newest 5 of every 50, and one of every 10.
TEST(Probes, OfDecodeByHand) {
  const std::set<std::int32_t> at = positions({0.1, 50}, 30, 30, 530);
  for (std::int32_t stretch = 0; stretch < 500; stretch += 10) {
    const auto count = std::distance(at.lower_bound(30 + stretch), at.lower_bound(40 + stretch));
    if (stretch % 50 == 40) {
      EXPECT_TRUE(count == 5 || count == 6) << stretch;
      for (std::int32_t p = 65 + stretch - 30; p < 70 + stretch - 30; ++p) EXPECT_TRUE(at.contains(p)) << p;
    } else {
      EXPECT_EQ(count, 1) << stretch;
    }
  }
}

TEST(Probes, ChunksChangeNothing) {
  const Probes probes{0.05, 100};
  const std::set<std::int32_t> whole = positions(probes, 777, 0, 1500);
  for (const std::int32_t chunk : {1, 7, 64, 333}) {
    std::set<std::int32_t> parts;
    for (std::int32_t begin = 0; begin < 1500; begin += chunk) parts.merge(positions(probes, 777, begin, std::min(1500, begin + chunk)));
    EXPECT_EQ(parts, whole) << "chunks of " << chunk;
  }
}

}  // namespace
}  // namespace kvlab
