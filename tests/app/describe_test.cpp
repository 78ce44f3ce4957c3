#include "app/describe.h"

#include <nlohmann/json.hpp>

#include "tests/app/app_fixture.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

using DescribeTest = AppTest;

TEST_F(DescribeTest, EveryKindHasItemsAndEveryPolicyDescribesItself) {
  for (const std::string& kind : list_kinds()) {
    if (kind == "experiments") continue;  // those of the working directory
    const Called listed = call({"list", kind, "--json"});
    ASSERT_EQ(listed.status, 0) << listed.err;
    const auto items = nlohmann::json::parse(listed.out);
    EXPECT_FALSE(items.empty()) << kind;
    for (const auto& item : items) {
      EXPECT_FALSE(item["name"].get<std::string>().empty());
      EXPECT_FALSE(item["summary"].get<std::string>().empty()) << item;
      if (left_out_of_short_run(item["name"])) continue;
      const Called described = call({"describe", item["name"], "--json"});
      EXPECT_EQ(described.status, 0) << described.err;
      EXPECT_TRUE(nlohmann::json::accept(described.out));
      EXPECT_EQ(call({"describe", item["name"]}).status, 0);
    }
  }
}

TEST_F(DescribeTest, ParametersHaveUnitsRangesAndDefaults) {
  const auto sarathi = nlohmann::json::parse(call({"describe", "sarathi", "--json"}).out);
  EXPECT_EQ(sarathi["kind"], "schedulers");
  bool found = false;
  for (const auto& p : sarathi["parameters"]) {
    if (p["key"] != "budget_tokens") continue;
    found = true;
    EXPECT_EQ(p["type"], "integer");
    EXPECT_EQ(p["unit"], "tokens");
    EXPECT_EQ(p["default"], "512");
    EXPECT_FALSE(p["meaning"].get<std::string>().empty());
  }
  EXPECT_TRUE(found);
}

TEST(UnitOf, Suffixes) {
  EXPECT_EQ(unit_of("ttft_ms"), "ms");
  EXPECT_EQ(unit_of("swap_bytes_per_s"), "bytes/s");
  EXPECT_EQ(unit_of("rate_per_s"), "1/s");
  EXPECT_EQ(unit_of("after_s"), "s");
  EXPECT_EQ(unit_of("watermark_frac"), "share");
  EXPECT_EQ(unit_of("max_num_seqs"), "");
}

}  // namespace
}  // namespace kvlab
