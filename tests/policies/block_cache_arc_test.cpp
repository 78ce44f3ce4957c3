#include "tests/policies/block_cache_host.h"

namespace kvlab {
namespace {

// 3 blocks; least recent first; p is the target size of T1.
//   a- b- a. c-                            T1[b c] T2[a]   B1[]    B2[]    p0
//   d:b                                    T1[c d] T2[a]   B1[b]           p0
//   b:c   b in B1: p+1                     T1[d]   T2[a b] B1[c]           p1
//   e:a   |T1| = p, so T2 gives            T1[d e] T2[b]   B1[c]   B2[a]   p1
//   a:d   a in B2: p-1                     T1[e]   T2[b a] B1[c d]         p0
//   f:e   |T1|+|B1| = 3: B1 forgets c      T1[f]   T2[b a] B1[d e]         p0
//   c:f   forgotten, so a plain miss       T1[c]   T2[b a] B1[e f]         p0
//   b.                                     T1[c]   T2[a b]
//   d:c   forgotten too                    T1[d]   T2[a b] B1[f c]         p0
//   f:a   f in B1: p+1; |T1| = p           T1[d]   T2[b f] B1[c]   B2[a]   p1
//   c:b   c in B1: p+1                     T1[d]   T2[f c] B1[]    B2[a b] p2
//   b:d   b in B2: p-1; |T1| = p, T1 gives T1[]    T2[f c b] B1[d] B2[a]   p1
//   g:f   T1 is empty                      T1[g]   T2[c b] B1[d]   B2[a f] p1
TEST(ArcBlockCache, HandTrace) { EXPECT_EQ(BlockCacheHost("arc", 3).run("abacdbeafcbdfcbg"), "--.-bcadef.cabdf"); }

TEST(ArcBlockCache, TheOtherListGivesWhereTheFirstHasNoCandidate) {
  BlockCacheHost host("arc", 3);
  EXPECT_EQ(host.run("aabc"), "-.--");  // T1[b c] T2[a]
  host.pin('b');
  host.unpin('b');                // T1[c] T2[a b]
  host.pin('c');                  // T2, referenced
  EXPECT_EQ(host.run("d"), "a");  // T1 is empty
  host.pin('d');
  EXPECT_EQ(host.run("e"), "b");
  host.unpin('d');
  host.unpin('c');
}

}  // namespace
}  // namespace kvlab
