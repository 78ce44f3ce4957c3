#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "policies/block_cache/block_cache.h"

namespace kvlab {
namespace {

std::unique_ptr<BlockCache> make_block_cache(const std::string& name, const std::string& parameters = "{}") {
  Params p = Params::from_text(parameters, "block cache '" + name + "'");
  return BlockCacheRegistry::make(name, p, "block cache");
}

// The least that a host does: content in blocks, references, and a check that every victim is a candidate.
class BlockCacheHost {
 public:
  BlockCacheHost(const std::string& cache, std::uint32_t num_blocks, const std::string& parameters = "{}")
      : cache_(make_block_cache(cache, parameters)), blocks_(num_blocks) {
    cache_->reset(num_blocks);
  }

  BlockCache& cache() { return *cache_; }
  [[nodiscard]] std::uint32_t num_referenced() const {
    std::uint32_t n = 0;
    for (const Block& b : blocks_) n += b.references > 0;
    return n;
  }

  // Adds a reference to `key`. '.': it was there; '-': it went into a blank block; else the key that was evicted for it.
  char pin(char key, std::uint32_t depth = 0, double cost_s = 0) {
    if (const auto found = places_.find(key); found != places_.end()) {
      cache_->on_hit(BlockId{found->second});
      if (blocks_[found->second].references++ == 0) cache_->on_acquire(BlockId{found->second});
      return '.';
    }
    const std::uint32_t block = take(key);
    const char old = blocks_[block].key;
    if (old != '-') places_.erase(old);
    blocks_[block] = {key, 1};
    places_[key] = block;
    cache_->on_insert(BlockId{block}, static_cast<std::uint64_t>(key), depth, cost_s);
    return old;
  }
  void unpin(char key) {
    const std::uint32_t block = places_.at(key);
    if (--blocks_[block].references == 0) cache_->on_release(BlockId{block});
  }
  // One request of one block for each letter; what pin() said of each.
  std::string run(const std::string& keys) {
    std::string outcomes;
    for (const char key : keys) {
      outcomes += pin(key);
      unpin(key);
    }
    return outcomes;
  }

 private:
  struct Block {
    char key = '-';
    std::uint32_t references = 0;
  };

  std::uint32_t take(char key) {
    if (!cache_->orders_blank_blocks() && num_used_ < blocks_.size()) return num_used_++;
    const std::uint32_t block = index(cache_->victim(static_cast<std::uint64_t>(key)));
    EXPECT_LT(block, blocks_.size());
    EXPECT_EQ(blocks_[block].references, 0U) << "a referenced block was evicted";
    return block;
  }

  std::unique_ptr<BlockCache> cache_;
  std::vector<Block> blocks_;
  std::map<char, std::uint32_t> places_;
  std::uint32_t num_used_ = 0;
};

const std::vector<std::string> kAll = {"arc", "belady", "block_groups", "fifo", "gdsf", "lfu", "lru", "s3fifo"};

TEST(BlockCacheContract, UnknownParameterIsRefused) {
  EXPECT_THROW(make_block_cache("lru", "{size: 3}"), InputError);
  EXPECT_THROW(make_block_cache("s3fifo", "{small_frac: 1.5}"), InputError);
}

TEST(BlockCacheContract, OneBlock) {
  for (const std::string& name : kAll) EXPECT_EQ(BlockCacheHost(name, 1).run("aabba"), "-.a.b") << name;
}

// With all blocks but one referenced the victim is that one, whatever the policy thinks of it.
TEST(BlockCacheContract, TheOnlyCandidateIsTheVictim) {
  for (const std::string& name : kAll) {
    BlockCacheHost host(name, 4);
    for (const char key : {'a', 'b', 'c', 'd'}) host.pin(key);
    host.unpin('c');
    EXPECT_EQ(host.pin('x'), 'c') << name;
    host.unpin('a');
    EXPECT_EQ(host.pin('y'), 'a') << name;
  }
}

// Random references, also several to one block and hits on referenced ones. The host checks every victim; in the end all
// blocks come out exactly once.
RC_GTEST_PROP(BlockCacheContract, VictimsAreCandidates, ()) {
  const std::string name = *rc::gen::elementOf(kAll);
  const auto num_blocks = *rc::gen::inRange<std::uint32_t>(1, 8);
  const auto steps = *rc::gen::container<std::vector<std::pair<char, bool>>>(
      300, rc::gen::pair(rc::gen::inRange<char>('a', 'n'), rc::gen::arbitrary<bool>()));
  BlockCacheHost host(name, num_blocks);
  std::map<char, int> pins;
  for (const auto& [key, wants_pin] : steps) {
    if (wants_pin && (host.num_referenced() < num_blocks || pins[key] > 0)) {
      host.pin(key);
      ++pins[key];
    } else if (!wants_pin && pins[key] > 0) {
      host.unpin(key);
      --pins[key];
    }
  }
  for (auto& [key, count] : pins)
    for (; count > 0; --count) host.unpin(key);
  for (std::uint32_t i = 0; i < num_blocks; ++i) host.pin(static_cast<char>('A' + i));
  RC_ASSERT(host.num_referenced() == num_blocks);
  RC_ASSERT(!::testing::Test::HasFailure());
}

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

TEST(LruBlockCache, AgeCountsFromTheLastReleaseNotTheHit) {
  BlockCacheHost host("lru", 2);
  host.pin('a');
  host.run("b");
  host.unpin('a');
  EXPECT_EQ(host.run("c"), "b");
}

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

// Fewest uses (fifo: all equal), then oldest insertion, among unreferenced blocks.
RC_GTEST_PROP(FifoAndLfuBlockCache, FollowTheirDefinition, (bool counts_uses)) {
  struct Block {
    std::uint64_t uses = 0, inserted = 0;
    std::uint32_t pins = 0;
  };
  const auto num_blocks = *rc::gen::inRange<std::uint32_t>(1, 8);
  BlockCacheHost host(counts_uses ? "lfu" : "fifo", num_blocks);
  std::map<char, Block> resident;
  std::uint64_t num_inserted = 0;
  const auto step = rc::gen::pair(rc::gen::inRange<char>('a', 'n'), rc::gen::arbitrary<bool>());
  for (const auto& [key, wants_pin] : *rc::gen::container<std::vector<std::pair<char, bool>>>(300, step)) {
    const auto found = resident.find(key);
    if (!wants_pin && found != resident.end() && found->second.pins > 0) {
      host.unpin(key);
      --found->second.pins;
    } else if (wants_pin && (found != resident.end() || host.num_referenced() < num_blocks)) {
      char expected = found != resident.end() ? '.' : '-';
      if (found == resident.end() && resident.size() == num_blocks) {
        std::tuple best(UINT64_MAX, UINT64_MAX, '-');
        for (const auto& [other, b] : resident)
          if (b.pins == 0) best = std::min(best, std::tuple(counts_uses ? b.uses : 1, b.inserted, other));
        expected = std::get<2>(best);
        resident.erase(expected);
      }
      RC_ASSERT(host.pin(key) == expected);
      Block& block = resident[key];
      if (block.uses++ == 0) block.inserted = num_inserted++;
      ++block.pins;
    }
  }
}

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
  //   b:c  S[] M[a6 b] G[c]                              e:c  a pays: a1
  //   d:b  a pays: M[b a2], b goes                       d:e  M[a1 d]
  //   c:d  c was a ghost: S[] M[a2 c] G[d]               f:d  a pays its last: a0     e:f  M[a0 e]
  EXPECT_EQ(host.run("bdcedfeg"), "cbdcedfa");
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

// A host that leaves the recorded order: what is not in the future counts as never used again, and the end is not overrun. Keys of a long
// future are small numbers.
TEST(BeladyBlockCache, SurvivesAnotherOrderThanAnnounced) {
  for (const std::size_t length : {1U, 100U}) {
    BlockCacheHost host("belady", 2);
    host.cache().set_future(keys_of(std::string(length, 'a') + "b"));
    EXPECT_EQ(host.run("zb"), "--");
    EXPECT_EQ(host.run("aabA").size(), 4U);
  }
}

// a and b are not used again, c is: the deeper of a and b goes first, c last.
TEST(BeladyBlockCache, AHitOnABlockThatIsNeverUsedAgain) {
  BlockCacheHost host("belady", 3);
  host.cache().set_future(keys_of("abccxyz"));
  for (const char key : {'a', 'b', 'c'}) host.pin(key, static_cast<std::uint32_t>(key - 'a'));
  for (const char key : {'a', 'b', 'c'}) host.unpin(key);
  host.pin('b');
  EXPECT_EQ(host.pin('x'), 'a');
  host.unpin('b');
  EXPECT_EQ(host.pin('y'), 'b');
  EXPECT_EQ(host.pin('z'), 'c');
}

std::vector<std::uint32_t> take(BlockCache& cache, std::size_t count, BlockId last = kNoBlock) {
  std::vector<BlockId> blocks;
  cache.victims_after(last, count, blocks);
  std::vector<std::uint32_t> ids;
  for (const BlockId block : blocks) ids.push_back(index(block));
  return ids;
}

using Ids = std::vector<std::uint32_t>;

// 20 blocks, 4 of which are left for the request before. The second request begins 4 after the first, which grows into them and, once they
// are gone, into the longest free run.
TEST(BlockGroupsCache, RequestsGrowIntoTheBlocksAfterThem) {
  const auto cache = make_block_cache("block_groups", "{group_blocks: 4}");
  cache->reset(20);
  EXPECT_EQ(take(*cache, 3), (Ids{0, 1, 2}));
  EXPECT_EQ(take(*cache, 3), (Ids{7, 8, 9}));
  EXPECT_EQ(take(*cache, 1, BlockId{2}), (Ids{3}));
  EXPECT_EQ(take(*cache, 3, BlockId{3}), (Ids{4, 5, 6}));
  EXPECT_EQ(take(*cache, 1, BlockId{6}), (Ids{14})) << "10 to 19 are free, and 10 to 13 are left for the request that ends at 9";
  EXPECT_EQ(take(*cache, 2, BlockId{9}), (Ids{10, 11}));
}

TEST(BlockGroupsCache, NothingIsLeftWhereTheRunIsShort) {
  const auto cache = make_block_cache("block_groups", "{group_blocks: 4}");
  cache->reset(10);
  EXPECT_EQ(take(*cache, 3), (Ids{0, 1, 2}));
  EXPECT_EQ(take(*cache, 5), (Ids{5, 6, 7, 8, 9})) << "2 of 7 are left";
  EXPECT_EQ(take(*cache, 2, BlockId{9}), (Ids{3, 4}));
}

// Runs that touch become one, and the longest run is taken though another fits better.
TEST(BlockGroupsCache, FreeRunsMerge) {
  const auto cache = make_block_cache("block_groups", "{group_blocks: 0}");
  cache->reset(8);
  EXPECT_EQ(take(*cache, 8).size(), 8U);
  for (const std::uint32_t id : {1U, 5U, 3U, 4U, 6U}) cache->on_release(BlockId{id});
  EXPECT_EQ(take(*cache, 2), (Ids{3, 4}));
  EXPECT_EQ(take(*cache, 3), (Ids{5, 6, 1})) << "several runs where none is long enough";
}

TEST(BlockGroupsCache, AHitTakesABlockOutOfItsRun) {
  const auto cache = make_block_cache("block_groups", "{group_blocks: 0}");
  cache->reset(5);
  cache->on_acquire(BlockId{2});
  EXPECT_EQ(take(*cache, 4), (Ids{3, 4, 0, 1}));
}

}  // namespace
}  // namespace kvlab
