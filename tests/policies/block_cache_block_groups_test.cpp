#include "tests/policies/block_cache_host.h"

namespace kvlab {
namespace {

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
