#include "base/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/error_of.h"

namespace kvlab {
namespace {

TEST(JsonDepth, CountsBracketsOutsideOfStrings) {
  EXPECT_EQ(json_depth(""), 0);
  EXPECT_EQ(json_depth("7"), 0);
  EXPECT_EQ(json_depth("[]"), 1);
  EXPECT_EQ(json_depth(R"({"a": [1, {}], "b": {}})"), 3);
  EXPECT_EQ(json_depth(R"(["[[[[", {"{{\"[[": 1}])"), 2);
  EXPECT_EQ(json_depth(R"(["\\", [[]]])"), 3);
}

TEST(JsonDepth, OfWhatIsNoJson) {
  EXPECT_EQ(json_depth("]]]["), 1);
  EXPECT_EQ(json_depth("[{[(] 1"), 3);
  EXPECT_EQ(json_depth(R"([["[[[)"), 2);
  EXPECT_EQ(json_depth(R"([["[[\)"), 2);
  EXPECT_EQ(json_depth(std::string(1'000'000, '[')), 1'000'000);
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
