#include "serving/copy_calls.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvlab {
namespace {

std::int64_t calls(const std::vector<std::uint32_t>& ids, std::int32_t most) {
  std::vector<BlockId> blocks;
  for (const std::uint32_t id : ids) blocks.push_back(BlockId{id});
  return copy_calls(blocks, most);
}

TEST(CopyCalls, OneForEachRunOfRisingNeighbours) {
  EXPECT_EQ(calls({}, 60), 0);
  EXPECT_EQ(calls({7}, 60), 1);
  EXPECT_EQ(calls({3, 4, 5, 6}, 60), 1);
  EXPECT_EQ(calls({3, 4, 9, 10, 11, 2}, 60), 3);
  EXPECT_EQ(calls({6, 5, 4, 3}, 60), 4) << "CPU memory has them the other way round";
  EXPECT_EQ(calls({3, 3, 4}, 60), 2);
}

TEST(CopyCalls, AtMostSoManyBlocksEach) {
  EXPECT_EQ(calls({0, 1, 2, 3, 4}, 1), 5);
  EXPECT_EQ(calls({0, 1, 2, 3, 4}, 2), 3);
  EXPECT_EQ(calls({0, 1, 2, 3, 4}, 4), 2);
  EXPECT_EQ(calls({0, 1, 2, 3, 4}, 5), 1);
}

}  // namespace
}  // namespace kvlab
