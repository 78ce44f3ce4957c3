#include "base/text.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/csv.h"
#include "base/json_text.h"
#include "base/time.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

using Names = std::vector<std::string>;

const Names kSchedulers{"fastgen", "orca", "sarathi", "static", "vllm_v0", "vllm_v1"};
const Names kCards{"a10", "a100-40gb", "a100-80gb", "h100", "h200", "l40s", "rtx3090", "rtx4090", "rtxpro6000", "t4"};
const Names kModels{"llama-100m",   "llama-2-7b", "llama-3.1-70b", "llama-3.1-8b", "mistral-7b",
                    "mixtral-8x7b", "opt-6.7b",   "qwen3-30b-a3b", "qwen3-32b",    "qwen3-8b"};
const Names kRecipes{"d2o", "fp16", "h2o", "h2o_decayed", "kivi2", "kivi4", "knorm", "snapkv", "tova"};
const Names kKeys{"budget_tokens", "hardware", "kv_policy", "max_model_len", "model", "scheduler", "tp", "tpot_ms", "trace", "ttft_ms"};

TEST(MeantNames, AreThoseThatAPersonMayHaveMeant) {
  struct {
    const char* typed;
    const Names& known;
    Names meant;
  } const cases[] = {
      {"sarati", kSchedulers, {"sarathi"}},
      {"saarthi", kSchedulers, {"sarathi"}},
      {"vLLM-V1", kSchedulers, {"vllm_v1"}},
      {"vllm", kSchedulers, {"vllm_v0", "vllm_v1"}},
      {"vllm_v9", kSchedulers, {"vllm_v0", "vllm_v1"}},
      {"H2O", kRecipes, {"h2o"}},
      {"SnapKV", kRecipes, {"snapkv"}},
      {"snapvk", kRecipes, {"snapkv"}},
      {"kivi", kRecipes, {"kivi2", "kivi4"}},
      {"kivi3", kRecipes, {}},
      {"a100", kCards, {"a100-40gb", "a100-80gb"}},
      {"A100-SXM", kCards, {}},
      {"RTX 4090", kCards, {"rtx4090"}},
      {"NVIDIA L40S", kCards, {"l40s"}},
      {"h1OO", kCards, {"h100"}},
      {"b200", kCards, {}},
      {"h20", kCards, {}},
      {"gh200", kCards, {}},
      {"l4", kCards, {}},
      {"l40", kCards, {}},
      {"a40", kCards, {}},
      {"x", kCards, {}},
      {"rtx5090", kCards, {}},
      {"meta-llama/Llama-3.1-8B", kModels, {"llama-3.1-8b"}},
      {"meta-llama/Meta-Llama-3.1-8B-Instruct", kModels, {"llama-3.1-8b"}},
      {"meta-llama/Llama-2-7b-chat-hf", kModels, {"llama-2-7b"}},
      {"mistralai/Mixtral-8x7B-Instruct-v0.1", kModels, {"mixtral-8x7b"}},
      {"Qwen/Qwen3-30B-A3B-Instruct-2507", kModels, {"qwen3-30b-a3b"}},
      {"Qwen/Qwen3-4B", kModels, {}},
      {"meta-llama/Llama-3.2-1B", kModels, {}},
      {"llama-3", kModels, {"llama-3.1-70b", "llama-3.1-8b"}},
      {"H100-SXM", {"h100", "h200", "l40s"}, {"h100"}},
      {"h100x4", {"h100", "h200", "l40s"}, {"h100"}},
      {"a100x", {"a10", "l40s"}, {}},
      {"vllm1", {"orca", "vllm_v0", "vllm_v1"}, {"vllm_v1"}},
      {"modle", kKeys, {"model"}},
      {"schedular", kKeys, {"scheduler"}},
      {"budget-tokens", kKeys, {"budget_tokens"}},
      {"tpot", kKeys, {"tpot_ms"}},
      {"tq", kKeys, {"tp"}},
      {"b", {"a"}, {}},
      {"", {"a"}, {}},
      {"orca", {}, {}},
  };
  for (const auto& c : cases) EXPECT_EQ(meant_names(c.typed, c.known), c.meant) << c.typed;
}

TEST(MeantNames, SuggestionNamesThemOrAllThatIsKnown) {
  EXPECT_EQ(suggestion("orcaa", {"orca", "static"}), "; did you mean 'orca'?");
  EXPECT_EQ(suggestion("a100", kCards), "; did you mean 'a100-40gb' or 'a100-80gb'?");
  EXPECT_EQ(suggestion("ab", {"ab1", "ab2", "ab3"}), "; did you mean 'ab1', 'ab2' or 'ab3'?");
  EXPECT_EQ(suggestion("zzzzzzzz", {"orca", "static"}), "; known: orca, static");
  EXPECT_EQ(suggestion("orca", {}), "");
  EXPECT_EQ(did_you_mean("zzzzzzzz", {"orca", "static"}), "");
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a", "b"}, "+"), "a+b");
}

TEST(NearestName, IsTheClosestOfNamesThatProgramsMake) {
  EXPECT_EQ(nearest_name("L3.k", {"L0.k", "L3.q"}), "L0.k");
  EXPECT_EQ(nearest_name("fastgen", {"sarathi", "orca"}), "");
  EXPECT_EQ(nearest_name("", {}), "");
}

TEST(Numbers, IntegersAreStrictDecimals) {
  long long value = 0;
  const std::pair<const char*, long long> good[] = {{"0", 0},
                                                    {"-0", 0},
                                                    {"+12", 12},
                                                    {"-12", -12},
                                                    {"9223372036854775807", std::numeric_limits<long long>::max()},
                                                    {"-9223372036854775808", std::numeric_limits<long long>::min()}};
  for (const auto& [text, number] : good) EXPECT_TRUE(parse_integer(text, value) && value == number) << text;
  for (const char* text : {"", "-", "+", "010", "-010", "00", "0x10", "1.0", "1e3", " 1", "1 ", "1,000", "1_000", "9223372036854775808",
                           "-9223372036854775809", "one", "++1", "1-"}) {
    EXPECT_FALSE(parse_integer(text, value)) << text;
  }
}

TEST(Numbers, RealsAreStrictAndFinite) {
  double value = 0;
  for (const auto& [text, number] : {std::pair{"2.5", 2.5}, {"-2.5e-3", -2.5e-3}, {"+3", 3}})
    EXPECT_TRUE(parse_real(text, value) && value == number) << text;
  for (const char* text : {"", "-", ".", "nan", "NaN", "inf", "-infinity", "0x10", "1e", "1e400", "1,5", " 1", "1 ", "1.0f", "1.2.3"})
    EXPECT_FALSE(parse_real(text, value)) << text;
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

RC_GTEST_PROP(Numbers, DecimalsOfAnyLengthAreCorrectlyRounded, ()) {
  const auto before = *rc::gen::inRange<long long>(0, 1'000'000'000'000), decimals = *rc::gen::inRange<long long>(0, 1'000'000'000);
  const std::string text = std::to_string(before % *rc::gen::inRange<long long>(1, 1'000'000'000'000)) + "." + std::to_string(decimals);
  double value = 0;
  RC_ASSERT(parse_real(text, value));
  RC_ASSERT(value == std::strtod(text.c_str(), nullptr));
}

TEST(FromSeconds, RoundsToTheNearestNanosecondAndRefusesWhatIsNoTime) {
  const std::pair<double, std::int64_t> cases[] = {
      {0, 0}, {-0.0, 0}, {0.4e-9, 0}, {0.6e-9, 1}, {1.5, 1'500'000'000}, {9.2e6, 9'200'000'000'000'000}};
  for (const auto& [seconds, ns] : cases) EXPECT_EQ(from_seconds(seconds), Span(ns)) << seconds;
  EXPECT_EQ(to_s(from_seconds(0.25)), 0.25);
  EXPECT_EQ(to_ms(from_seconds(0.25)), 250);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double bad : {std::nan(""), kInfinity, -kInfinity, -1e-12, std::nextafter(9.2e6, 1e7)})
    EXPECT_THROW((void)from_seconds(bad), InputError) << bad;
}

TEST(Csv, QuotedFieldsAndLineEndsOfAnyKindAreRead) {
  const std::vector<std::string> fields = {"a", "", "b,c", "say \"x\"", "two\nlines", " 1 "};
  EXPECT_EQ(parse_csv(csv_line({"1", "2", "3", "4", "5", "6"}) + csv_line(fields), "t").rows,
            (std::vector<std::vector<std::string>>{fields}));
  EXPECT_EQ(parse_csv("a,b\r\n1,2\r\n3,4", "t").rows, (std::vector<std::vector<std::string>>{{"1", "2"}, {"3", "4"}}));
}

TEST(Csv, WhatASpreadsheetWouldComputeIsText) {
  const std::vector<std::string> fields = {"=1+1", "+x", "-x", "@x", "-1.5", "+2", "-", "'=1", "'a", "=a,\"b\""};
  EXPECT_EQ(csv_line(fields), "'=1+1,'+x,'-x,'@x,-1.5,+2,'-,''=1,'a,\"'=a,\"\"b\"\"\"\n");
  EXPECT_EQ(parse_csv("1,2,3,4,5,6,7,8,9,10\n" + csv_line(fields), "t").rows[0], fields);
}

// Also of forms that it leaves to parse_csv().
TEST(CsvText, HasTheFieldsAndLinesOfATable) {
  for (const std::string text : {"a,b\n1,2\n,x y\n", "a,b\n1,2\n3,4", "a,b\n1,\"2\n,\"\n\n3,4\n", "a,b\r\n1,2\r\n", "a,b\n'=1,2\n",
                                 "a\n\n1\n", "a,b\n", "\xc3\xa9,b\n-1,+2\n"}) {
    const CsvTable table = parse_csv(text, "t");
    const CsvText same(text, "t");
    EXPECT_EQ(same.header().columns, table.columns) << text;
    ASSERT_EQ(same.num_rows(), table.rows.size()) << text;
    for (std::size_t row = 0; row < table.rows.size(); ++row) {
      EXPECT_EQ(same.line(row), table.lines[row]) << text;
      for (std::size_t c = 0; c < table.columns.size(); ++c) EXPECT_EQ(same.field(row, c), table.rows[row][c]) << text;
    }
  }
}

std::string csv_error(const std::string& text) {
  const std::string error = error_of([&] { static_cast<void>(parse_csv(text, "t.csv").at("a")); });
  EXPECT_EQ(error_of([&] { static_cast<void>(CsvText(text, "t.csv").header().at("a")); }), error);
  return error;
}

TEST(Csv, Errors) {
  EXPECT_EQ(csv_error(""), "t.csv: empty file; a header line is expected");
  EXPECT_EQ(csv_error("a,b\n1,2\n1\n"), "t.csv:3: has 1 fields where the header has 2");
  EXPECT_EQ(csv_error("a\n\"x\n"), "t.csv:2: a quote is never closed");
  EXPECT_EQ(csv_error("aa\n1\n"), "t.csv:1: has no column 'a'; known: aa");
}

TEST(ShortNumber, KeepsAboutFourDigits) {
  const std::pair<double, const char*> cases[] = {{0, "0"},          {1234567.8, "1,234,568"}, {-1234.2, "-1,234"},
                                                  {999.94, "999.9"}, {0.5, "0.500"},           {12.3456, "12.35"}};
  for (const auto& [x, text] : cases) EXPECT_EQ(short_number(x), text);
  for (const std::string text : {"", "derived"}) EXPECT_EQ(short_number(text), text);
}

TEST(JsonDepth, CountsBracketsOutsideOfStringsAlsoOfWhatIsNoJson) {
  const std::pair<std::string, int> cases[] = {{"", 0},
                                               {"7", 0},
                                               {"[]", 1},
                                               {R"({"a": [1, {}], "b": {}})", 3},
                                               {R"(["[[[[", {"{{\"[[": 1}])", 2},
                                               {R"(["\\", [[]]])", 3},
                                               {"]]][", 1},
                                               {"[{[(] 1", 3},
                                               {R"([["[[[)", 2},
                                               {R"([["[[\)", 2},
                                               {std::string(1'000'000, '['), 1'000'000}};
  for (const auto& [text, depth] : cases) EXPECT_EQ(json_depth(text), depth) << text.substr(0, 40);
}

TEST(JsonDepth, SixtyFourLevelsAreTaken) {
  const auto error = [](std::size_t levels) { return error_of([&] { refuse_deep_json(std::string(levels, '['), "a.json:3"); }); };
  EXPECT_EQ(error(64), "no error");
  EXPECT_EQ(error(65), "a.json:3: values in it are nested deeper than 64 levels");
}

TEST(ShortJson, IsAsciiAndSaysWhereItIsCut) {
  EXPECT_EQ(short_json(nlohmann::json::parse(R"({"a": [1, "ü"]})")), R"({"a":[1,"\u00fc"]})");
  EXPECT_EQ(short_json("\xff"), R"("\ufffd")");
  EXPECT_EQ(short_json("abcd", 6), R"("abcd")");
  EXPECT_EQ(short_json("abcde", 6), R"("abcde...)");
}

}  // namespace
}  // namespace kvlab
