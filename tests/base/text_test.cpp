#include "base/text.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "base/time.h"

namespace kvlab {
namespace {

TEST(NearestName, FindsMisspellingsOnly) {
  const std::vector<std::string> known{"sarathi", "orca", "vllm_v0", "vllm_v1"};
  EXPECT_EQ(nearest_name("sarati", known), "sarathi");
  EXPECT_EQ(nearest_name("sarathi", known), "sarathi");
  EXPECT_EQ(nearest_name("saarthi", known), "sarathi");
  EXPECT_EQ(nearest_name("vllm_v1x", known), "vllm_v1");
  EXPECT_EQ(nearest_name("fastgen", known), "");
  EXPECT_EQ(nearest_name("", {}), "");
  EXPECT_EQ(nearest_name("orca", {}), "");
}

TEST(NearestName, SuggestionSaysWhatIsKnown) {
  EXPECT_EQ(suggestion("orcaa", {"orca", "static"}), "; did you mean 'orca'?");
  EXPECT_EQ(suggestion("zzzzzzzz", {"orca", "static"}), "; known: orca, static");
  EXPECT_EQ(suggestion("orca", {}), "");
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a", "b"}, "+"), "a+b");
}

TEST(Numbers, IntegersAreStrictDecimals) {
  long long value = 0;
  EXPECT_TRUE(parse_integer("0", value) && value == 0);
  EXPECT_TRUE(parse_integer("-0", value) && value == 0);
  EXPECT_TRUE(parse_integer("+12", value) && value == 12);
  EXPECT_TRUE(parse_integer("-12", value) && value == -12);
  EXPECT_TRUE(parse_integer("9223372036854775807", value) && value == std::numeric_limits<long long>::max());
  EXPECT_TRUE(parse_integer("-9223372036854775808", value) && value == std::numeric_limits<long long>::min());
  for (const char* text : {"", "-", "+", "010", "-010", "00", "0x10", "1.0", "1e3", " 1", "1 ", "1,000", "1_000", "9223372036854775808",
                           "-9223372036854775809", "one", "++1", "1-"}) {
    EXPECT_FALSE(parse_integer(text, value)) << text;
  }
}

TEST(Numbers, RealsAreStrictAndFinite) {
  double value = 0;
  EXPECT_TRUE(parse_real("2.5", value) && value == 2.5);
  EXPECT_TRUE(parse_real("-2.5e-3", value) && value == -2.5e-3);
  EXPECT_TRUE(parse_real("+3", value) && value == 3);
  for (const char* text : {"", "-", ".", "nan", "NaN", "inf", "-infinity", "0x10", "1e", "1e400", "1,5", " 1", "1 ", "1.0f", "1.2.3"}) {
    EXPECT_FALSE(parse_real(text, value)) << text;
  }
}

RC_GTEST_PROP(Numbers, TextReadsBackAsTheSameNumber, ()) {
  const auto x = *rc::gen::arbitrary<double>();
  RC_PRE(std::isfinite(x));
  double back = 0;
  RC_ASSERT(parse_real(number_text(x), back));
  RC_ASSERT(back == x);
  const auto n = *rc::gen::arbitrary<long long>();
  long long whole = 0;
  RC_ASSERT(parse_integer(std::to_string(n), whole));
  RC_ASSERT(whole == n);
}

TEST(FromSeconds, RoundsToTheNearestNanosecond) {
  EXPECT_EQ(from_seconds(0), Span(0));
  EXPECT_EQ(from_seconds(-0.0), Span(0));
  EXPECT_EQ(from_seconds(0.4e-9), Span(0));
  EXPECT_EQ(from_seconds(0.6e-9), Span(1));
  EXPECT_EQ(from_seconds(1.5), Span(1'500'000'000));
  EXPECT_EQ(from_seconds(9.2e6), Span(9'200'000'000'000'000));
  EXPECT_EQ(to_s(from_seconds(0.25)), 0.25);
  EXPECT_EQ(to_ms(from_seconds(0.25)), 250);
}

TEST(FromSeconds, RefusesWhatIsNoTime) {
  EXPECT_THROW((void)from_seconds(std::nan("")), InputError);
  EXPECT_THROW((void)from_seconds(std::numeric_limits<double>::infinity()), InputError);
  EXPECT_THROW((void)from_seconds(-std::numeric_limits<double>::infinity()), InputError);
  EXPECT_THROW((void)from_seconds(-1e-12), InputError);
  EXPECT_THROW((void)from_seconds(std::nextafter(9.2e6, 1e7)), InputError);
}

}  // namespace
}  // namespace kvlab
