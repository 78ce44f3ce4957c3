#include "tests/policies/block_cache_host.h"

namespace kvlab {
namespace {

// Uses, oldest insertion first: a1 b1 c1  a.2  d:b [a2 c1 d1]  b:c [a2 d1 b1]  e:d [a2 b1 e1]  a.3  c:b [a3 e1 c1]  c.2
//   f:e [a3 c2 f1]  a.4. That b comes back with one use shows that counts are forgotten.
TEST(LfuBlockCache, HandTrace) { EXPECT_EQ(BlockCacheHost("lfu", 3).run("abcadbeaccfa"), "---.bcd.b.e."); }

TEST(LfuBlockCache, HitsOnReferencedBlocksCount) {
  BlockCacheHost host("lfu", 2);
  host.pin('a');
  host.pin('a');
  host.unpin('a');
  host.unpin('a');
  EXPECT_EQ(host.run("bcd"), "-bc");
}

}  // namespace
}  // namespace kvlab
