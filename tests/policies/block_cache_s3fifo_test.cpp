#include "tests/policies/block_cache_host.h"

namespace kvlab {
namespace {

// 4 blocks: 1 small, 3 main, 3 ghosts. S, M and G oldest first; a number counts hits.
//   a- b- c- d-  a.1 a.2   S[a2 b c d]
//   e:b   a had 2 hits and moves            S[c d e]  M[a]        G[b]
//   b:c   b was a ghost                     S[d e]    M[a b]      G[c]
//   c:d                                     S[e]      M[a b c]    G[d]
//   a.1
//   f:e   main is at its share, not over    S[f]      M[a1 b c]   G[d e]
//   d:f                                     S[]       M[a1 b c d] G[e f]
//   g:b   main is over: a pays its hit      S[g]      M[c d a]    G[e f]
//   b:g   evicted from main, so no ghost    S[b]      M[c d a]    G[e f g]
//   a.1
//   e:b                                     S[]       M[c d a1 e] G[f g b]
TEST(S3FifoBlockCache, HandTrace) { EXPECT_EQ(BlockCacheHost("s3fifo", 4).run("abcdaaebcafdgbae"), "----..bcd.efbg.b"); }

// The same first steps with one hit enough: a is promoted after its first.
TEST(S3FifoBlockCache, PromotionThreshold) {
  EXPECT_EQ(BlockCacheHost("s3fifo", 4).run("abcdae"), "----.a");
  EXPECT_EQ(BlockCacheHost("s3fifo", 4, "{promote_hits: 1}").run("abcdae"), "----.b");
}

TEST(S3FifoBlockCache, MainCreditsAtMostThreeHits) {
  BlockCacheHost host("s3fifo", 2);     // 1 small, 1 main, 1 ghost
  EXPECT_EQ(host.run("abca"), "--ab");  // S[b c] G[a], then a, a ghost, enters main: S[c] M[a] G[b]
  EXPECT_EQ(host.run("aaaaaa"), "......");
  // Each ghost that enters main puts it over its share, and a pays one credit of three for it; the rival leaves.
  EXPECT_EQ(host.run("b"), "c");  // S[]  M[a6 b] G[c]
  EXPECT_EQ(host.run("d"), "b");  // a pays: M[b a2], b goes
  EXPECT_EQ(host.run("c"), "d");  // c was a ghost: S[] M[a2 c] G[d]
  EXPECT_EQ(host.run("e"), "c");  // a pays: a1
  EXPECT_EQ(host.run("d"), "e");  // M[a1 d]
  EXPECT_EQ(host.run("f"), "d");  // a pays its last: a0
  EXPECT_EQ(host.run("e"), "f");  // M[a0 e]
  EXPECT_EQ(host.run("g"), "a");
}

TEST(S3FifoBlockCache, AReferencedBlockKeepsItsPlace) {
  BlockCacheHost host("s3fifo", 4);
  host.run("abcd");
  host.pin('a');
  host.pin('b');
  EXPECT_EQ(host.run("e"), "c");
  host.unpin('b');
  host.unpin('a');
  EXPECT_EQ(host.run("fg"), "ab");  // one hit each: below the threshold
}

}  // namespace
}  // namespace kvlab
