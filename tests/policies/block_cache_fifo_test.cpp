#include "tests/policies/block_cache_host.h"

namespace kvlab {
namespace {

// Oldest first: a- b- c-  a.  d:a [b c d]  b.  e:b [c d e]  a:c [d e a]  c:d [e a c]  c.  f:e [a c f]  a.
TEST(FifoBlockCache, HandTrace) { EXPECT_EQ(BlockCacheHost("fifo", 3).run("abcadbeaccfa"), "---.a.bcd.e."); }

TEST(FifoBlockCache, AReferencedBlockKeepsItsPlace) {
  BlockCacheHost host("fifo", 3);
  host.run("abc");
  host.pin('a');
  EXPECT_EQ(host.run("d"), "b");
  host.unpin('a');
  EXPECT_EQ(host.run("e"), "a");
}

}  // namespace
}  // namespace kvlab
