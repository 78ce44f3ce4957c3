#include <gtest/gtest.h>

#include "kernels/storage/token_copy_op.h"
#include "tests/kernels/paged_rows.h"

namespace kvlab {
namespace {

// One row of three tokens in pages of two, the second page before the first.
struct Pool : PagedRows {
  Pool() : PagedRows({3}, 2, 2, 1) {
    std::ranges::copy(std::vector<float>{5, 6, 0, 0, 1, 2, 3, 4}, k.begin());  // [4 slots, 2 channels]
    std::ranges::copy(std::vector<std::int32_t>{30, 0, 10, 20}, position.begin());
    std::ranges::copy(std::vector<std::uint32_t>{33, 0, 11, 22}, words.begin());
  }
};

TEST(TokenCopy, VectorsInTheOrderOfTheList) {
  Pool pool;
  const std::int64_t first[] = {0, 3};
  const std::int32_t index[] = {0, 2, -1};
  std::vector<float> stored(6, 9);
  run_cpu(TokenCopy{{pool.kv, first, index}, TokenCopy::Kind::kVectors, TokenCopy::Way::kFromPages, stored.data()});
  EXPECT_EQ(stored, (std::vector<float>{1, 2, 5, 6, 9, 9}));
  stored = {7, 8, 9, 10, 11, 12};
  run_cpu(TokenCopy{{pool.kv, first, index}, TokenCopy::Kind::kVectors, TokenCopy::Way::kIntoPages, stored.data()});
  EXPECT_EQ(pool.k, (std::vector<float>{9, 10, 0, 0, 7, 8, 3, 4}));
}

// Three tokens of four channels, in two bytes each; into pages a vector of one channel comes whole.
TEST(TokenCopy, BytesOfACall) {
  const std::int64_t first[] = {0, 3};
  KvRows kv;
  kv.num_rows = 1, kv.head_dim = 4, kv.kv_bytes = 2, kv.first = first, kv.num_words = 2;
  TokenCopy copy{{kv, first}};
  EXPECT_EQ(call(copy), (OpCall{.op = "token_copy", .rows = 1, .tokens = 3, .outputs = 3, .bytes = 3 * 4 + 3 * 2 * 8}));
  copy.keep = 1;
  EXPECT_EQ(call(copy).bytes, 3 * 4 + 3 * 2 * 2);
  copy.way = TokenCopy::Way::kIntoPages;
  EXPECT_EQ(call(copy).bytes, 3 * 4 + 3 * 2 * 5);
  EXPECT_EQ(call(copy_words(kv, TokenCopy::Way::kFromPages, nullptr)),
            (OpCall{.op = "token_copy", .rows = 1, .tokens = 3, .outputs = 3, .bytes = 2 * 3 * 3 * 4}));
}

TEST(TokenCopy, ChannelsThatAreNotStoredComeBackAsZeros) {
  Pool pool;
  const std::int64_t first[] = {0, 2};
  const std::int32_t index[] = {0, 2};
  const std::uint8_t second = 2;
  std::vector<float> stored(2);
  TokenCopy copy{.tokens = {pool.kv, first, index}, .stored = stored.data(), .channels = &second, .keep = 1};
  run_cpu(copy);
  EXPECT_EQ(stored, (std::vector<float>{2, 6}));
  copy.way = TokenCopy::Way::kIntoPages;
  run_cpu(copy);
  EXPECT_EQ(pool.k, (std::vector<float>{0, 6, 0, 0, 0, 2, 3, 4}));
}

TEST(TokenCopy, PositionsAndStatistics) {
  Pool pool;
  std::vector<std::uint32_t> stored(6);
  run_cpu(copy_words(pool.kv, TokenCopy::Way::kFromPages, stored.data()));
  EXPECT_EQ(stored, (std::vector<std::uint32_t>{10, 20, 30, 11, 22, 33}));
  stored = {1, 2, 3, 4, 5, 6};
  run_cpu(copy_words(pool.kv, TokenCopy::Way::kIntoPages, stored.data()));
  EXPECT_EQ(pool.position, (std::vector<std::int32_t>{3, 0, 1, 2}));
  EXPECT_EQ(pool.words, (std::vector<std::uint32_t>{6, 0, 4, 5}));
}

}  // namespace
}  // namespace kvlab
