#include "traces/block_hashes.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "traces/numbers.h"

namespace kvlab {
namespace {

constexpr std::array<std::uint64_t, 4> kHashes{11, 22, 33, 44};

TraceRequest request(std::int32_t prompt, std::int32_t output, std::int32_t hash_tokens, std::size_t num_hashes) {
  TraceRequest r;
  r.prompt_tokens = prompt;
  r.output_tokens = output;
  r.hash_tokens = hash_tokens;
  r.hashes = std::span(kHashes).first(num_hashes);
  return r;
}

TEST(BlockHashes, PartialHashesCoverThePromptOnlyAndFullOnesGeneratedTokensToo) {
  const TraceRequest r = request(1100, 500, 512, 3);  // as Mooncake writes it
  EXPECT_EQ(covered_tokens(r), 1100);
  EXPECT_EQ(num_block_hashes(r, 512), 2U);
  EXPECT_EQ(num_block_hashes(r, 1024), 1U);
  EXPECT_EQ(num_block_hashes(r, 16), 68U);  // floor(1100 / 16)
  EXPECT_EQ(num_block_hashes(r, 1100), 0U) << "neither size divides the other";
  EXPECT_EQ(num_block_hashes(request(1100, 5, 512, 2), 512), 2U);
  EXPECT_EQ(num_block_hashes(request(1024, 5, 512, 2), 512), 2U);
  EXPECT_EQ(num_block_hashes(request(1024, 5, 512, 2), 256), 4U);
  EXPECT_EQ(num_block_hashes(request(1024, 5, 512, 0), 512), 0U);
  const TraceRequest behind = request(20, 44, 16, 4);
  EXPECT_EQ(covered_tokens(behind), 64);
  EXPECT_EQ(num_block_hashes(behind, 16), 4U);
  EXPECT_EQ(num_block_hashes(behind, 32), 2U);
  EXPECT_EQ(num_block_hashes(request(20, 12, 16, 2), 16), 1U) << "the last chunk crosses the prompt's end: only the prompt is sure";
  EXPECT_EQ(num_block_hashes(request(16, 16, 16, 2), 16), 2U);
}

TEST(BlockHashes, NamesOfBlocksAndOfPartsOfChunks) {
  EXPECT_EQ(block_hash(512, kHashes, 512, 2), 33U);
  EXPECT_EQ(block_hash(512, kHashes, 1024, 0), 22U);
  EXPECT_EQ(block_hash(512, kHashes, 1024, 1), 44U);
  for (const std::int32_t block_tokens : {1, 4, 16, 256}) {
    std::set<std::uint64_t> names;
    const auto count = static_cast<std::uint32_t>(4 * 512 / block_tokens);
    for (std::uint32_t i = 0; i < count; ++i) names.insert(block_hash(512, kHashes, block_tokens, i));
    EXPECT_EQ(names.size(), count) << "of " << block_tokens << " tokens";
  }
  constexpr std::array<std::uint64_t, 4> kOther{11, 23, 33, 44};  // the second chunk differs
  EXPECT_EQ(block_hash(512, kHashes, 16, 31), block_hash(512, kOther, 16, 31));
  EXPECT_NE(block_hash(512, kHashes, 16, 32), block_hash(512, kOther, 16, 32));
}

TEST(BlockHashes, ConsecutiveBlocksHaveTheNamesOfEach) {
  for (const std::int32_t block_tokens : {1, 4, 16, 256, 512, 1024, 2048}) {
    const auto count = static_cast<std::uint32_t>(4 * 512 / block_tokens);
    for (const std::uint32_t first : {0U, 1U, count / 3, count / 2, count - 1}) {
      if (first >= count) continue;
      BlockHashes hashes(512, kHashes, block_tokens, first);
      for (std::uint32_t i = first; i < count; ++i)
        ASSERT_EQ(hashes.next(), block_hash(512, kHashes, block_tokens, i))
            << i << " from " << first << " of " << block_tokens << " tokens";
    }
  }
  BlockHashes(0, {}, 16, 0);  // reads nothing
}

constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t time_of(const std::string& text, std::int64_t unit = kSecond) {
  std::int64_t value = 0;
  return parse_time_ns(text, unit, value) ? value : -1;
}

TEST(Numbers, TimesAreExactToTheNanosecond) {
  EXPECT_EQ(time_of("0"), 0);
  EXPECT_EQ(time_of("0.1"), 100'000'000);
  EXPECT_EQ(time_of("4.314579"), 4'314'579'000);
  EXPECT_EQ(time_of("1.0000000004"), kSecond);
  EXPECT_EQ(time_of("1.0000000005"), kSecond + 1);
  EXPECT_EQ(time_of("0.9999999999"), kSecond);
  EXPECT_EQ(time_of("123456789.123456789"), 123'456'789'123'456'789);
  EXPECT_EQ(time_of("3000.25", 1'000'000), 3'000'250'000);
  EXPECT_EQ(time_of("7.5", 1), 8);
  EXPECT_EQ(time_of("5e-05"), 50'000);
  EXPECT_EQ(time_of("1.5E3"), 1500 * kSecond);
}

TEST(Numbers, TimesThatAreNoneOrBeyondTenYears) {
  for (const char* text : {"", "-1", "+1", ".5", "1.", "1.5s", "0x10", "nan", "inf", "1e", "1_000", " 1", "1 ", "-1e3", "e5"})
    EXPECT_EQ(time_of(text), -1) << "'" << text << "'";
  EXPECT_EQ(time_of("315360000"), kMaxTraceNs);
  for (const char* text : {"315360001", "99999999999999999999999999", "1e300"}) EXPECT_GT(time_of(text), kMaxTraceNs) << text;
}

TEST(Numbers, DateTimes) {
  std::int64_t value = 0;
  ASSERT_TRUE(parse_date_time_ns("1970-01-01 00:00:00", value));
  EXPECT_EQ(value, 0);
  ASSERT_TRUE(parse_date_time_ns("2024-02-29T12:30:01.5Z", value));
  EXPECT_EQ(value, 1'709'209'801 * kSecond + kSecond / 2);
  ASSERT_TRUE(parse_date_time_ns("2024-02-29 12:30:01-01:30", value));
  EXPECT_EQ(value, (1'709'209'801 + 5400) * kSecond);
  for (const char* text : {"2023-02-29 00:00:00", "2023-13-01 00:00:00", "2023-01-01 24:00:00", "2023-01-01 00:60:00",
                           "2023-01-01 00:00:60", "2023-01-01", "2023-01-01 00:00", "2023-01-01 00:00:00.", "2023-01-01 00:00:00+0000",
                           "23-01-01 00:00:00", "2023-01-01 00:00:00 ", "1969-12-31 23:59:59", "2200-01-01 00:00:00"}) {
    EXPECT_FALSE(parse_date_time_ns(text, value)) << text;
  }
}

TEST(Numbers, UnsignedDigitsOnly) {
  std::uint64_t value = 0;
  EXPECT_TRUE(parse_unsigned("18446744073709551615", value));
  EXPECT_EQ(value, ~std::uint64_t{0});
  EXPECT_TRUE(parse_unsigned("0", value));
  for (const char* text : {"", "-1", "+1", "01", "18446744073709551616", "1.0", "1e3", "a"})
    EXPECT_FALSE(parse_unsigned(text, value)) << text;
}

}  // namespace
}  // namespace kvlab
