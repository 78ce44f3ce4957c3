#include "tests/policies/block_cache_host.h"

namespace kvlab {
namespace {

// Least recent first, after each access:
//   a- b- c-  a. [b c a]  d:b [c a d]  b:c [a d b]  e:a [d b e]  a:d [b e a]  c:b [e a c]  c.  f:e [a c f]  a.
TEST(LruBlockCache, HandTrace) { EXPECT_EQ(BlockCacheHost("lru", 3).run("abcadbeaccfa"), "---.bcadb.e."); }

TEST(LruBlockCache, BlankBlocksComeInIndexOrderAndQueueWithTheRest) {
  auto cache = make_block_cache("lru");
  cache->reset(3);
  EXPECT_TRUE(cache->orders_blank_blocks());
  EXPECT_EQ(cache->victim(0), BlockId{0});
  cache->on_release(BlockId{0});  // freed without content: after the blank ones
  EXPECT_EQ(cache->victim(0), BlockId{1});
  EXPECT_EQ(cache->victim(0), BlockId{2});
  EXPECT_EQ(cache->victim(0), BlockId{0});
}

// Card 1.4d: a request frees its blocks in reverse order, so that its deepest block is evicted first.
TEST(LruBlockCache, DeepestBlockOfARequestGoesFirst) {
  BlockCacheHost host("lru", 3);
  for (const char key : {'a', 'b', 'c'}) host.pin(key);
  for (const char key : {'c', 'b', 'a'}) host.unpin(key);
  EXPECT_EQ(host.run("xyz"), "cba");
}

TEST(LruBlockCache, AgeCountsFromTheLastReleaseNotTheHit) {
  BlockCacheHost host("lru", 2);
  host.pin('a');
  host.run("b");
  host.unpin('a');
  EXPECT_EQ(host.run("c"), "b");
}

}  // namespace
}  // namespace kvlab
