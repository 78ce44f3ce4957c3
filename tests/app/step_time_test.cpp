#include <nlohmann/json.hpp>

#include "app/runs/plan/serving_plan.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

using OrderedJson = nlohmann::ordered_json;

StepShares shares_by_hand() {
  StepShares shares{};
  const auto at = [&](CostPart part, Basis basis) -> double& {
    return shares[static_cast<std::size_t>(part)][static_cast<std::size_t>(basis)];
  };
  at(CostPart::kLinear, Basis::kMeasured) = 0.41;
  at(CostPart::kLinear, Basis::kRoofline) = 0.11;
  at(CostPart::kAttention, Basis::kMeasured) = 0.3;
  at(CostPart::kHead, Basis::kRoofline) = 0.04;
  at(CostPart::kCollective, Basis::kDatasheet) = 0.12;
  at(CostPart::kPolicy, Basis::kMeasured) = 0.0019998;
  at(CostPart::kExperts, Basis::kExtrapolated) = 2e-7;
  shares[kCostParts][0] = 0.018;
  return shares;
}

TEST(StepTime, ByPart) {
  EXPECT_EQ(step_time_by_part(shares_by_hand()).dump(),
            R"({"linear":{"measured":0.41,"roofline":0.11},"attention":{"measured":0.3},"head":{"roofline":0.04},)"
            R"("collectives":{"datasheet":0.12},"policy":{"measured":0.002},"host":{"measured":0.018}})");
  EXPECT_EQ(step_time_by_part({}).dump(), "{}");
  EXPECT_DOUBLE_EQ(share_with(shares_by_hand(), Basis::kRoofline), 0.15);
}

TEST(StepTime, OnOneLine) {
  const OrderedJson first = step_time_by_part(shares_by_hand());
  const OrderedJson second = {{"linear", {{"measured", 0.6}}}, {"attention", {{"measured", 0.4}}}};
  EXPECT_EQ(step_time_line({first}),
            "step time: linear 52 % (79 % measured, 21 % roofline), attention 30 % (measured), collectives 12 % (datasheet), head 4 % "
            "(roofline), host 2 % (measured)");
  EXPECT_EQ(step_time_line({first, OrderedJson::object(), second}),
            "step time: linear 52 to 60 % (90 % measured, 10 % roofline), attention 30 to 40 % (measured), collectives 0 to 12 % "
            "(datasheet), head 0 to 4 % (roofline), host 0 to 2 % (measured)");
  EXPECT_EQ(step_time_line({}) + step_time_line({OrderedJson::object()}), "");
}

struct StepTimeTest : AppTest {
  static Called run(const std::string& tp, const std::string& out, const std::vector<std::string>& more = {}) {
    write("small.yaml", std::string(kSmall) + "scheduler: vllm_v1\nparallel: {tp: " + tp + "}\n");
    return call_ok({"run", "small.yaml", "--out", out}, more);
  }
  static OrderedJson shares_in(const fs::path& folder) {
    return OrderedJson::parse(read(folder / "manifest.json"))["runs"][0]["step_time_by_part"];
  }
};

TEST_F(StepTimeTest, IsInTheManifestAndPrinted) {
  const Called two = run("2", "two");
  run("2", "two_slow", {"--fast-forward=off"});
  const OrderedJson shares = shares_in("two");
  double sum = 0;
  for (const auto& [part, bases] : shares.items())
    for (const auto& [basis, share] : bases.items()) sum += share.get<double>();
  EXPECT_NEAR(sum, 1, 1e-5);
  EXPECT_EQ(shares["linear"].size(), 1U);
  EXPECT_GT(shares["linear"]["roofline"], 0.1);
  EXPECT_FALSE(shares["collectives"].contains("datasheet")) << "the card's file has tables";
  EXPECT_FALSE(shares.contains("experts"));
  EXPECT_EQ(shares, shares_in("two_slow"));
  EXPECT_THAT(two.out, has_all({"\nstep time: linear ", " % (roofline), "}));
}

TEST_F(StepTimeTest, TheRooflineOnSeveralGpusIsARemark) {
  EXPECT_THAT(run("2", "two").out, HasSubstr(" % of step time at tp = 2 is by the roofline, which is unverified there"));
  EXPECT_THAT(run("1", "one").out, Not(HasSubstr("docs/fidelity.md")));
}

}  // namespace
}  // namespace kvlab
