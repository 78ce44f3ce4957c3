#include "traces/numbers.h"

#include <gtest/gtest.h>

#include <string>

namespace kvlab {
namespace {

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

TEST(Numbers, TimesThatAreNone) {
  for (const char* text : {"", "-1", "+1", ".5", "1.", "1.5s", "0x10", "nan", "inf", "1e", "1_000", " 1", "1 ", "-1e3", "e5"})
    EXPECT_EQ(time_of(text), -1) << "'" << text << "'";
}

TEST(Numbers, TimesBeyondTenYearsAreMarked) {
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
