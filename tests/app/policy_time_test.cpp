// The columns of requests.csv on the KV policy's time.
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

struct PolicyTimeTest : AppTest {
  PolicyTimeTest() { ::setenv("KVLAB_RECIPES", KVLAB_SOURCE_DIR "/policies/kv/recipes", 1); }
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

TEST_F(PolicyTimeTest, IsOfRunsWithAPolicyAlone) {
  run("full", "full");
  EXPECT_EQ(header_of("full/requests.csv"), kPlain);
  run("[full, {recipe: [h2o, snapkv], budget_tokens: 128}]", "mixed");
  EXPECT_EQ(header_of("mixed/requests.csv"), std::string(kPlain) + ",prefill_policy_ns,decode_policy_ns");
  const CsvTable summary = read_csv("mixed/summary.csv"), requests = read_csv("mixed/requests.csv");
  ASSERT_EQ(requests.rows.size(), 6U * 60);
  std::map<std::string, std::string> recipe_of;
  for (const auto& row : summary.rows) recipe_of[row[0]] = row[summary.at("kv_policy")] + row[summary.at("kv_policy.recipe")];
  std::map<std::string, std::int64_t> in_prefill, in_decode;
  for (std::size_t i = 0; i < requests.rows.size(); ++i) {
    const std::string& recipe = recipe_of.at(requests.rows[i][0]);
    if (recipe == "full") {
      EXPECT_EQ(text(requests, "prefill_policy_ns", i) + text(requests, "decode_policy_ns", i), "");
      continue;
    }
    const std::int64_t prefill = number_at(requests, i, "prefill_policy_ns"), decode = number_at(requests, i, "decode_policy_ns");
    EXPECT_GT(prefill, 0);
    EXPECT_LT(prefill, number_at(requests, i, "first_token_ns") - number_at(requests, i, "scheduled_ns"));
    EXPECT_LE(decode, number_at(requests, i, "last_token_ns") - number_at(requests, i, "first_token_ns"));
    in_prefill[recipe] += prefill;
    in_decode[recipe] += decode;
  }
  ASSERT_EQ(in_decode.size(), 2U);
  for (const auto& [recipe, time] : in_decode) EXPECT_GT(time, 0) << recipe;
  EXPECT_EQ(header_of("mixed/runs/" + run_id("mixed") + "/requests.csv"), kPlain);
}

// Rows of the run without a policy are those of a sweep without any, and two empty fields.
TEST_F(PolicyTimeTest, OtherColumnsStayTheSame) {
  run("full", "full");
  run("[{recipe: h2o, budget_tokens: 128}, full]", "mixed");
  const CsvTable full = read_csv("full/requests.csv"), mixed = read_csv("mixed/requests.csv");
  std::size_t shared = 0;
  for (const auto& row : mixed.rows) {
    if (!row.back().empty()) continue;
    ASSERT_LT(shared, full.rows.size());
    EXPECT_EQ(std::vector(row.begin() + 1, row.end() - 2), std::vector(full.rows[shared].begin() + 1, full.rows[shared].end()));
    ++shared;
  }
  EXPECT_EQ(shared, full.rows.size());
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
