#include "serving/block_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "base/config/params.h"
#include "base/error.h"
#include "base/random.h"
#include "serving/block_index.h"
#include "serving/node_store.h"

namespace kvlab {
namespace {

std::unique_ptr<BlockCache> cache(const std::string& name) {
  Params p = Params::empty("block cache");
  return BlockCacheRegistry::make(name, p, "block cache");
}

BlockPool pool_of(std::uint32_t blocks) { return {blocks, 8, cache("lru")}; }

// A request's chain: takes and publishes keys in order.
std::vector<BlockId> hold(BlockPool& pool, const std::vector<std::uint64_t>& keys) {
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    blocks.push_back(pool.take());
    pool.publish(blocks.back(), keys[i], i, 0);
  }
  return blocks;
}

// 2^30 blocks would take 115 GiB at once.
TEST(BlockPool, MemoryIsTakenOnUse) {
  for (const std::string& name : BlockCacheRegistry::names()) {
    if (name == "block_groups") continue;  // blocks of different calls are far apart on purpose
    BlockPool pool(std::uint32_t{1} << 30, 8, cache(name));
    EXPECT_EQ(pool.free_blocks(), std::int64_t{1} << 30) << name;
    EXPECT_EQ(pool.takes_before_loss(), name == "lru" ? 0 : std::int64_t{1} << 30) << name;
    const auto held = hold(pool, {1, 2, 3});
    EXPECT_EQ(held, (std::vector<BlockId>{BlockId{0}, BlockId{1}, BlockId{2}})) << name;
    EXPECT_EQ(pool.find(3), held[2]) << name;
    pool.release_reversed(held);
    EXPECT_EQ(pool.free_blocks(), std::int64_t{1} << 30) << name;
    EXPECT_EQ(pool.take(), BlockId{3}) << name;
  }
}

TEST(BlockPool, FreedBlocksGoDeepestFirstToTheBackAndKeepTheirHash) {
  BlockPool pool = pool_of(4);
  const auto a = hold(pool, {1, 2});
  const auto b = hold(pool, {3, 4});
  EXPECT_EQ(pool.free_blocks(), 0);
  pool.release_reversed(b);
  pool.release_reversed(a);
  EXPECT_EQ(std::tuple(pool.free_blocks(), pool.cached_blocks(), pool.find(4)), std::tuple(4, 4, b[1]));
  // Order of eviction: 4 (b's deepest), 3, 2, 1. Taking is what loses the hash.
  pool.take();
  EXPECT_EQ(std::tuple(pool.find(4), pool.find(3)), std::tuple(kNoBlock, b[0]));
  pool.take();
  EXPECT_EQ(std::tuple(pool.find(3), pool.find(2), pool.evictions()), std::tuple(kNoBlock, a[1], 2U));
  pool.check();
}

TEST(BlockPool, AHitOnAFreeBlockTakesItOutOfTheMiddle) {
  BlockPool pool = pool_of(3);
  const auto blocks = hold(pool, {1, 2, 3});
  pool.release_reversed(blocks);  // order: 3, 2, 1
  pool.note_hit(blocks[1]);
  pool.acquire(blocks[1]);
  EXPECT_EQ(pool.free_blocks(), 2);
  EXPECT_EQ(pool.take(), blocks[2]);
  EXPECT_EQ(pool.take(), blocks[0]);
  EXPECT_EQ(pool.find(2), blocks[1]);
  pool.acquire(blocks[1]);
  pool.release(blocks[1]);
  EXPECT_EQ(pool.free_blocks(), 0) << "one reference is left";
  pool.release(blocks[1]);
  EXPECT_EQ(pool.free_blocks(), 1);
  pool.check();
}

TEST(BlockPool, EqualContentStaysInTwoBlocksAndTheFirstIsFound) {
  BlockPool pool = pool_of(3);
  const auto a = hold(pool, {7});
  const auto b = hold(pool, {7});
  EXPECT_EQ(pool.find(7), a[0]);
  pool.release(a[0]);
  pool.take();  // the blank third block is older in the free list
  pool.take();  // now a's
  EXPECT_EQ(pool.find(7), b[0]);
}

TEST(BlockPool, LooseInSplitBlocksComeFirst) {
  BlockPool pool = pool_of(4);
  const auto cached = hold(pool, {1, 2});
  pool.release_reversed(cached);  // free: two blank, then 2, 1
  EXPECT_EQ(pool.free_after_pages(9), 2);
  pool.take_pages(9);  // splits two blocks, 7 pages are loose
  EXPECT_EQ(std::tuple(pool.free_blocks(), pool.loose_pages()), std::tuple(2, 7));
  pool.return_pages(1);
  EXPECT_EQ(pool.loose_pages(), 8);
  EXPECT_EQ(pool.free_blocks(), 3) << "eight loose pages serve as a block";
  pool.take();
  EXPECT_EQ(pool.loose_pages(), 0) << "and are taken before the free list's front";
  EXPECT_NE(pool.find(2), kNoBlock);
  pool.check();
  EXPECT_LT(pool.free_after_pages(25), 0);
  EXPECT_EQ(pool.free_after_pages(16), 0);
  pool.take_pages(8);
  EXPECT_EQ(pool.find(2), kNoBlock) << "splitting a cached block evicts it";
  pool.check();
}

TEST(BlockPool, BatchesAreSingleOperations) {
  for (const char* name : {"lru", "fifo", "lfu", "s3fifo", "arc", "gdsf"}) {
    BlockPool one(40, 4, cache(name)), many(40, 4, cache(name));
    std::vector<std::vector<BlockId>> held_one, held_many;
    std::uint64_t key = 0;
    for (std::uint64_t step = 0; step < 400; ++step) {
      const auto draw = [&](std::uint64_t layer) { return Draw{1, Purpose::kTest, 5, step, layer}; };
      const auto count = static_cast<std::int64_t>(draw(0).below(9));
      if (count <= one.free_blocks()) {
        held_one.emplace_back();
        held_many.emplace_back();
        for (std::int64_t i = 0; i < count; ++i) held_one.back().push_back(one.take());
        many.take(count, held_many.back());
        ASSERT_EQ(held_one.back(), held_many.back()) << name << " step " << step;
        for (std::uint32_t i = 0; i < held_one.back().size(); ++i) {
          one.publish(held_one.back()[i], ++key, i, 1);
          many.publish(held_many.back()[i], key, i, 1);
        }
      } else {
        const std::size_t gone = draw(1).below(held_one.size());
        for (std::size_t i = held_one[gone].size(); i-- > 0;) one.release(held_one[gone][i]);
        many.release_reversed(held_many[gone]);
        held_one.erase(held_one.begin() + static_cast<std::ptrdiff_t>(gone));
        held_many.erase(held_many.begin() + static_cast<std::ptrdiff_t>(gone));
      }
      one.check();
      many.check();
      ASSERT_EQ(one.free_blocks(), many.free_blocks());
    }
  }
}

constexpr BlockId block(std::uint32_t i) { return BlockId{i}; }

TEST(BlockIndex, FindsNothingWhenEmpty) {
  BlockIndex index;
  EXPECT_EQ(index.find(1), kNoBlock);
  index.reset(0);
  EXPECT_EQ(index.find(0), kNoBlock);
}

TEST(BlockIndex, ResetForgetsEverything) {
  BlockIndex index;
  index.reset(2);
  index.insert(5, block(0));
  index.insert(5, block(1));
  index.reset(2);
  EXPECT_EQ(index.find(5), kNoBlock);
  const BlockIndex::Place place = index.insert(5, block(1));
  EXPECT_EQ(index.find(5), block(1));
  index.erase(place, block(1));
  EXPECT_EQ(index.find(5), kNoBlock);
}

RC_GTEST_PROP(BlockIndex, AgreesWithAMapOfLists, ()) {
  const auto num_blocks = *rc::gen::inRange<std::uint32_t>(1, 24);
  BlockIndex index;
  index.reset(num_blocks);
  std::map<std::uint64_t, std::vector<BlockId>> expected;
  std::vector<std::uint64_t> key_of(num_blocks, UINT64_MAX);  // UINT64_MAX: not in the index
  std::vector<BlockIndex::Place> place_of(num_blocks);
  const std::uint64_t last_key = *rc::gen::element<std::uint64_t>(6, 20, 500);  // in one group, in a few, in many
  const auto steps = *rc::gen::container<std::vector<std::pair<std::uint32_t, std::uint64_t>>>(
      200, rc::gen::pair(rc::gen::inRange<std::uint32_t>(0, num_blocks), rc::gen::inRange<std::uint64_t>(0, last_key)));
  for (const auto& [b, key] : steps) {
    if (key_of[b] == UINT64_MAX) {
      place_of[b] = index.insert(key, block(b));
      expected[key].push_back(block(b));
      key_of[b] = key;
    } else {
      index.erase(place_of[b], block(b));
      std::erase(expected[key_of[b]], block(b));
      key_of[b] = UINT64_MAX;
    }
    for (std::uint64_t k = 0; k < last_key; ++k) RC_ASSERT(index.find(k) == (expected[k].empty() ? kNoBlock : expected[k].front()));
    RC_ASSERT(index.num_entries() == num_blocks - std::count(key_of.begin(), key_of.end(), UINT64_MAX));
  }
}

NodeStore store_of(std::int64_t blocks) {
  Params p = Params::empty("block cache");
  return {blocks, 64, BlockCacheRegistry::make("lru", p, "block cache")};
}

// A prompt of whole blocks of 64 tokens, four hashes each. Prompts of one family begin alike.
struct Prompt {
  std::vector<std::uint64_t> hashes;
  TraceRequest request;
  Prompt(std::uint64_t family, std::int32_t blocks) {
    for (std::int32_t i = 0; i < 4 * blocks; ++i) hashes.push_back(1000 * family + static_cast<std::uint64_t>(i));
    request.prompt_tokens = 64 * blocks;
    request.hash_tokens = 16;
    request.hashes = hashes;
  }
};

void keep(NodeStore& store, const Prompt& prompt) { store.end_write(store.begin_write(prompt.request, 1000)); }

TEST(NodeStore, LeadingBlocksAreFoundOnceTheyAreHere) {
  NodeStore store = store_of(10);
  const Prompt short_one(1, 3), long_one(1, 5), other(2, 5);
  const NodeStore::Write write = store.begin_write(short_one.request, 1000);
  EXPECT_EQ(write.fresh.size(), 3U);
  EXPECT_EQ(store.leading_blocks(long_one.request), 0);  // on their way
  store.check(3);
  store.end_write(write);
  store.check(0);
  EXPECT_EQ(std::tuple(store.leading_blocks(long_one.request), store.leading_blocks(other.request)), std::tuple(3, 0));
  EXPECT_EQ(store.begin_write(long_one.request, 4).fresh.size(), 1U);  // blocks that are here are not written again
  EXPECT_EQ(store.use().written_blocks, 3);
}

TEST(NodeStore, BlocksOfThePromptAloneAreKept) {
  const NodeStore store = store_of(10);
  Prompt prompt(1, 4);
  prompt.request.prompt_tokens = 255;  // the hashes continue after it
  EXPECT_EQ(store.blocks_of(prompt.request), 3);
  prompt.request.hash_tokens = 24;
  EXPECT_THROW(static_cast<void>(store.blocks_of(prompt.request)), InputError);
}

TEST(NodeStore, TheLeastRecentlyUsedIsGivenUpTheDeepestBlockFirst) {
  NodeStore store = store_of(6);
  const Prompt a(1, 3), b(2, 3), c(3, 2);
  keep(store, a);
  keep(store, b);
  store.unpin(store.pin(a.request, 0, 3));  // a is read
  keep(store, c);
  EXPECT_EQ(std::tuple(store.leading_blocks(a.request), store.leading_blocks(b.request), store.leading_blocks(c.request)),
            std::tuple(3, 1, 2));
  EXPECT_EQ(store.pool().evictions(), 2U);
}

TEST(NodeStore, PinnedBlocksStay) {
  NodeStore store = store_of(3);
  const Prompt a(1, 2), b(2, 3);
  keep(store, a);
  const std::vector<BlockId> pins = store.pin(a.request, 0, 2);
  store.check(2);
  EXPECT_THROW(store.check(1), InternalError);
  const NodeStore::Write write = store.begin_write(b.request, 3);
  EXPECT_EQ(write.fresh.size(), 1U);
  EXPECT_EQ(store.use().no_room_blocks, 2);
  store.end_write(write);
  EXPECT_EQ(std::tuple(store.leading_blocks(a.request), store.leading_blocks(b.request)), std::tuple(2, 1));
  store.unpin(pins);
  keep(store, b);
  EXPECT_EQ(std::tuple(store.leading_blocks(b.request), store.leading_blocks(a.request)), std::tuple(3, 0));
}

// The slower of two writes of one content stores nothing.
TEST(NodeStore, ContentIsKeptOnce) {
  NodeStore store = store_of(6);
  const Prompt a(1, 3);
  const NodeStore::Write first = store.begin_write(a.request, 3), second = store.begin_write(a.request, 3);
  EXPECT_EQ(second.fresh.size(), 3U);
  store.end_write(second);
  store.end_write(first);
  EXPECT_EQ(std::tuple(store.use().written_blocks, store.pool().cached_blocks()), std::tuple(3, 3));
  store.check(0);
}

}  // namespace
}  // namespace kvlab
