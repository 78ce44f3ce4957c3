#include "base/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/error_of.h"

namespace kvlab {
namespace {

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
