#include "tests/policies/block_cache_host.h"

namespace kvlab {
namespace {

std::vector<std::uint64_t> keys_of(const std::string& letters) { return {letters.begin(), letters.end()}; }

// a- b-  c:b (a comes back first)  a.  b:c (never again)  d:b (never again)  a.
TEST(BeladyBlockCache, HandTrace) {
  BlockCacheHost host("belady", 2);
  EXPECT_TRUE(host.cache().needs_future());
  const std::string letters = "abcabda";
  host.cache().set_future(keys_of(letters));
  EXPECT_EQ(host.run(letters), "--b.cb.");
}

TEST(BeladyBlockCache, OfBlocksNeverUsedAgainTheDeepestGoesFirst) {
  BlockCacheHost host("belady", 3);
  host.cache().set_future(keys_of("abcxyz"));
  for (const char key : {'a', 'b', 'c'}) host.pin(key, static_cast<std::uint32_t>(key - 'a'));
  for (const char key : {'a', 'b', 'c'}) host.unpin(key);
  EXPECT_EQ(host.pin('x'), 'c');
  EXPECT_EQ(host.pin('y'), 'b');
  EXPECT_EQ(host.pin('z'), 'a');
}

TEST(BeladyBlockCache, WithoutAFutureNothingIsEverUsedAgain) { EXPECT_EQ(BlockCacheHost("belady", 1).run("aba"), "-ab"); }

// A host that leaves the recorded order: what is not in the future counts as never used again, and the end is not overrun.
TEST(BeladyBlockCache, SurvivesAnotherOrderThanAnnounced) {
  BlockCacheHost host("belady", 2);
  host.cache().set_future(keys_of("ab"));
  EXPECT_EQ(host.run("zb"), "--");
  EXPECT_EQ(host.run("aab").size(), 3U);
}

}  // namespace
}  // namespace kvlab
