#include "serving/node_store.h"

#include <gtest/gtest.h>

#include "base/config/params.h"
#include "base/error.h"

namespace kvlab {
namespace {

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
