#include "tests/policies/block_cache_host.h"

namespace kvlab {
namespace {

// Equal costs: H = clock + uses. a-H1 a.2 a.3  b-H1  c:b clock 1, cH2  d:c clock 2, dH3  e: a and d have H3, a was
// released first. lfu would keep a for ever (e:d); the clock lets it age.
TEST(GdsfBlockCache, HandTrace) {
  EXPECT_EQ(BlockCacheHost("gdsf", 2).run("aaabcde"), "-..-bca");
  EXPECT_EQ(BlockCacheHost("lfu", 2).run("aaabcde"), "-..-bcd");
}

TEST(GdsfBlockCache, KeepsWhatIsDearToCompute) {
  BlockCacheHost host("gdsf", 2);
  host.pin('a', 0, 0.5);
  host.pin('b', 0, 0.001);
  host.unpin('a');
  host.unpin('b');
  EXPECT_EQ(host.pin('c', 0, 0.001), 'b');
  host.unpin('c');
  EXPECT_EQ(host.pin('d', 0, 0.001), 'c');
}

}  // namespace
}  // namespace kvlab
