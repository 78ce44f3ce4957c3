#include "serving/block_index.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace kvlab {
namespace {

constexpr BlockId block(std::uint32_t i) { return BlockId{i}; }

TEST(BlockIndex, FindsNothingWhenEmpty) {
  BlockIndex index;
  EXPECT_EQ(index.find(1), kNoBlock);
  index.reset(0);
  EXPECT_EQ(index.find(0), kNoBlock);
}

TEST(BlockIndex, ReturnsTheFirstInsertedCopyThatIsStillThere) {
  BlockIndex index;
  index.reset(4);
  for (const std::uint32_t b : {2U, 0U, 3U, 1U}) index.insert(9, block(b));
  EXPECT_EQ(index.find(9), block(2));
  index.erase(9, block(0));  // from the middle
  EXPECT_EQ(index.find(9), block(2));
  index.erase(9, block(2));  // the first
  EXPECT_EQ(index.find(9), block(3));
  index.erase(9, block(1));  // the last
  index.insert(9, block(2));
  EXPECT_EQ(index.find(9), block(3));
  index.erase(9, block(3));
  EXPECT_EQ(index.find(9), block(2));
  index.erase(9, block(2));
  EXPECT_EQ(index.find(9), kNoBlock);
  EXPECT_EQ(index.num_entries(), 0U);
}

TEST(BlockIndex, ResetForgetsEverything) {
  BlockIndex index;
  index.reset(2);
  index.insert(5, block(0));
  index.insert(5, block(1));
  index.reset(2);
  EXPECT_EQ(index.find(5), kNoBlock);
  index.insert(5, block(1));
  EXPECT_EQ(index.find(5), block(1));
  index.erase(5, block(1));
  EXPECT_EQ(index.find(5), kNoBlock);
}

RC_GTEST_PROP(BlockIndex, AgreesWithAMapOfLists, ()) {
  const auto num_blocks = *rc::gen::inRange<std::uint32_t>(1, 24);
  BlockIndex index;
  index.reset(num_blocks);
  std::map<std::uint64_t, std::vector<BlockId>> expected;
  std::vector<std::uint64_t> key_of(num_blocks, UINT64_MAX);  // UINT64_MAX: not in the index
  const auto steps = *rc::gen::container<std::vector<std::pair<std::uint32_t, std::uint64_t>>>(
      200, rc::gen::pair(rc::gen::inRange<std::uint32_t>(0, num_blocks), rc::gen::inRange<std::uint64_t>(0, 6)));
  for (const auto& [b, key] : steps) {
    if (key_of[b] == UINT64_MAX) {
      index.insert(key, block(b));
      expected[key].push_back(block(b));
      key_of[b] = key;
    } else {
      index.erase(key_of[b], block(b));
      std::erase(expected[key_of[b]], block(b));
      key_of[b] = UINT64_MAX;
    }
    for (std::uint64_t k = 0; k < 6; ++k) RC_ASSERT(index.find(k) == (expected[k].empty() ? kNoBlock : expected[k].front()));
  }
}

}  // namespace
}  // namespace kvlab
