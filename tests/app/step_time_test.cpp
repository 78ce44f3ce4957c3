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

TEST(BatchTime, ByPart) {
  EXPECT_EQ(step_time_by_part(shares_by_hand()).dump(),
            R"({"linear":{"measured":0.41,"roofline":0.11},"attention":{"measured":0.3},"head":{"roofline":0.04},)"
            R"("collectives":{"datasheet":0.12},"policy":{"measured":0.002},"host":{"measured":0.018}})");
  EXPECT_EQ(step_time_by_part({}).dump(), "{}");
  EXPECT_DOUBLE_EQ(share_with(shares_by_hand(), Basis::kRoofline), 0.15);
}

TEST(BatchTime, OnOneLine) {
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
  EXPECT_THAT(two.out, has_all({"\nstep time: linear ", " % (roofline), ",
                                " % of step time at tp = 2 is by the roofline, which is unverified there"}));
  EXPECT_THAT(run("1", "one").out, Not(HasSubstr("docs/fidelity.md")));
}

// The columns of requests.csv on the KV policy's time.

struct PolicyTimeTest : AppTest {
  static void run(const std::string& policies, const std::string& out, const std::vector<std::string>& more = {}) {
    write("small.yaml", std::string(kSmall) + "scheduler: [vllm_v1, sarathi]\nkv_policy: " + policies + "\n");
    call_ok({"run", "small.yaml", "--quiet", "--out", out}, more);
  }
  static std::string header_of(const std::string& file) { return read(file).substr(0, read(file).find('\n')); }
};

constexpr const char* kPlain =
    "run,request,replica,session,arrival_ns,queued_ns,scheduled_ns,first_token_ns,last_token_ns,prompt_tokens,output_tokens,hit_tokens,"
    "preemptions,recomputed_tokens,state";

std::int64_t number_at(const CsvTable& t, std::size_t row, const std::string& column) { return std::stoll(t.rows[row][t.at(column)]); }

// Rows of the run without a policy are those of a sweep without any, and two empty fields.
TEST_F(PolicyTimeTest, IsOfRunsWithAPolicyAlone) {
  run("full", "full");
  EXPECT_EQ(header_of("full/requests.csv"), kPlain);
  run("[full, {recipe: [h2o, snapkv], budget_tokens: 128}]", "mixed");
  EXPECT_EQ(header_of("mixed/requests.csv"), std::string(kPlain) + ",prefill_policy_ns,decode_policy_ns");
  const CsvTable summary = read_csv("mixed/summary.csv"), requests = read_csv("mixed/requests.csv"), full = read_csv("full/requests.csv");
  ASSERT_EQ(requests.rows.size(), 6U * 60);
  std::size_t shared = 0;
  std::map<std::string, std::string> recipe_of;
  for (const auto& row : summary.rows) recipe_of[row[0]] = row[summary.at("kv_policy")] + row[summary.at("kv_policy.recipe")];
  std::map<std::string, std::int64_t> in_prefill, in_decode;
  for (std::size_t i = 0; i < requests.rows.size(); ++i) {
    const std::string& recipe = recipe_of.at(requests.rows[i][0]);
    if (recipe == "full") {
      EXPECT_EQ(text(requests, "prefill_policy_ns", i) + text(requests, "decode_policy_ns", i), "");
      ASSERT_LT(shared, full.rows.size());
      const auto &row = requests.rows[i], &alone = full.rows[shared++];
      EXPECT_EQ(std::vector(row.begin() + 1, row.end() - 2), std::vector(alone.begin() + 1, alone.end()));
      continue;
    }
    const std::int64_t prefill = number_at(requests, i, "prefill_policy_ns"), decode = number_at(requests, i, "decode_policy_ns");
    EXPECT_GT(prefill, 0);
    EXPECT_LT(prefill, number_at(requests, i, "first_token_ns") - number_at(requests, i, "scheduled_ns"));
    EXPECT_LE(decode, number_at(requests, i, "last_token_ns") - number_at(requests, i, "first_token_ns"));
    in_prefill[recipe] += prefill;
    in_decode[recipe] += decode;
  }
  EXPECT_EQ(shared, full.rows.size());
  ASSERT_EQ(in_decode.size(), 2U);
  for (const auto& [recipe, time] : in_decode) EXPECT_GT(time, 0) << recipe;
  EXPECT_EQ(header_of("mixed/runs/" + run_id("mixed") + "/requests.csv"), kPlain);
}

// Prompts of 60 requests do not fit into one step, so that two groups of them alternate on the stages. A request waits for the policy in
// each of its own steps, which is about the policy's share of step time.
TEST_F(PolicyTimeTest, StepsOfAPipelineCountForTheirOwnRequests) {
  run("{recipe: h2o, budget_tokens: 128}", "pipeline",
      {"--set", "parallel.pp=2", "--set", "trace.generate.arrival.poisson.rate_per_s=1000", "--set", "memory.num_blocks=4000", "--set",
       "scheduler=[{vllm_v1: {budget_tokens: 512}}, {sarathi: {budget_tokens: 512}}]"});
  const CsvTable summary = read_csv("pipeline/summary.csv"), requests = read_csv("pipeline/requests.csv");
  std::map<std::string, std::int64_t> work, wait;
  for (std::size_t i = 0; i < requests.rows.size(); ++i) {
    const std::int64_t first = number_at(requests, i, "first_token_ns");
    const std::int64_t prefill = number_at(requests, i, "prefill_policy_ns"), decode = number_at(requests, i, "decode_policy_ns");
    EXPECT_LE(prefill, first - number_at(requests, i, "scheduled_ns"));
    EXPECT_LE(decode, number_at(requests, i, "last_token_ns") - first);
    work[requests.rows[i][0]] += decode;
    wait[requests.rows[i][0]] += number_at(requests, i, "last_token_ns") - first;
  }
  ASSERT_EQ(summary.rows.size(), 2U);
  for (const auto& row : summary.rows) {
    const double share = static_cast<double>(work.at(row[0])) / static_cast<double>(wait.at(row[0]));
    EXPECT_GT(share, 0.75 * std::stod(row[summary.at("step_policy_frac")])) << row[0];
  }
}

// Little memory, so that requests are preempted.
TEST_F(PolicyTimeTest, SkippedStepsGiveTheSameBytes) {
  const std::vector<std::string> tight = {"--set", "memory.num_blocks=60", "--set", "max_model_len=800"};
  std::vector<std::string> slow = tight;
  slow.emplace_back("--fast-forward=off");
  for (const auto& [out, more] : {std::pair{"fast", tight}, {"slow", slow}})
    run("[{recipe: [h2o, quest], budget_tokens: 128}, kivi2]", out, more);
  const CsvTable requests = read_csv("fast/requests.csv");
  EXPECT_TRUE(
      std::any_of(requests.rows.begin(), requests.rows.end(), [&](const auto& row) { return row[requests.at("preemptions")] != "0"; }));
  for (const std::string file : {"/requests.csv", "/summary.csv"}) EXPECT_EQ(read("fast" + file), read("slow" + file));
}

}  // namespace
}  // namespace kvlab
