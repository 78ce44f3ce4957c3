#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "app/runs/plan/serving_plan.h"
#include "app/runs/report/known_metrics.h"
#include "app/runs/report/sweep_keys.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

// Three replicas of two GPUs for 36 s, of which the two GPUs of each spend 9 s at peak, and a million tokens.
TEST(Bill, ByHand) {
  CostSetup cost;
  cost.parallel.tp = 2;
  cost.hardware.power = PowerSpec{100, 500};
  cost.hardware.price_per_hour = 3.6;
  RunSummary summary;
  summary.duration = Span(36'000'000'000);
  summary.peak_s = 27;
  summary.output_tokens = 1'000'000;
  const Bill bill = bill_of(summary, {PoolUse{cost, 3, summary.peak_s}});
  EXPECT_DOUBLE_EQ(bill.energy_j.value(), 100.0 * 6 * 36 + 400.0 * 2 * 27);
  EXPECT_DOUBLE_EQ(bill.energy_j_per_token.value(), (21'600 + 21'600) / 1e6);
  EXPECT_DOUBLE_EQ(bill.dollars_per_million_tokens.value(), 3.6 * 6 * 0.01);
  EXPECT_EQ(bill.remark, "");
  summary.output_tokens = 0;
  const Bill none = bill_of(summary, {PoolUse{cost, 3, summary.peak_s}});
  EXPECT_TRUE(none.energy_j && !none.energy_j_per_token && !none.dollars_per_million_tokens);
}

// Two GPUs at 100 W for 10 s, and four of another card that also draw 200 W more for 3 s each; 1 and 2 USD an hour.
TEST(Bill, SumsOverPools) {
  CostSetup small, large;
  small.hardware.name = "small", small.hardware.file = "s.yaml";
  small.hardware.power = PowerSpec{100, 100};
  small.hardware.price_per_hour = 1;
  large.parallel.tp = 2;
  large.hardware.power = PowerSpec{50, 250};
  large.hardware.price_per_hour = 2;
  ServingSummary summary;
  summary.duration = Span(10'000'000'000);
  summary.output_tokens = 1000;
  const std::vector<PoolUse> pools{{small, 2, 7}, {large, 2, 6}};
  const Bill bill = bill_of(summary, pools);
  EXPECT_DOUBLE_EQ(bill.energy_j.value(), 100.0 * 2 * 10 + 50.0 * 4 * 10 + 200.0 * 2 * 6);
  EXPECT_DOUBLE_EQ(energy_j(summary.duration, pools[1]).value(), 50.0 * 4 * 10 + 200.0 * 2 * 6);
  EXPECT_DOUBLE_EQ(bill.dollars_per_million_tokens.value(), (1.0 * 2 + 2.0 * 4) * 10 / 3600 / 1000 * 1e6);
  small.hardware.power.reset();
  const Bill none = bill_of(summary, pools);
  EXPECT_FALSE(none.energy_j || none.energy_j_per_token);
  EXPECT_TRUE(none.dollars_per_million_tokens);
  EXPECT_THAT(none.remark, HasSubstr("no energy for small: add 'power: {idle_w: WATTS, peak_w: WATTS}' to s.yaml"));
}

struct BillTest : AppTest {
  // A run on an H100 with these keys in place of its own on power and price; more: added to the experiment.
  CsvTable run(const std::string& keys, const std::string& more = "") {
    std::string card;
    std::istringstream lines(read(KVLAB_SOURCE_DIR "/profiles/hardware/h100.yaml"));
    for (std::string line; std::getline(lines, line);)
      if (!line.starts_with("power:") && !line.starts_with("price_per_hour:")) card += line + "\n";
    write("card.yaml", card + keys);
    write("small.yaml", std::string(kSmall) + "scheduler: vllm_v1\n" + more);
    folder_of_run_ = "r" + std::to_string(++runs_);
    out_ = call_ok({"run", "small.yaml", "--set", "hardware=card.yaml", "--out", folder_of_run_.string()}).out;
    return read_csv(folder_of_run_ / "summary.csv");
  }

  fs::path folder_of_run_;
  std::string out_;

 private:
  int runs_ = 0;
};

TEST_F(BillTest, PowerIsIdleAndTheRestByUse) {
  const CsvTable flat = run("power: {idle_w: 100, peak_w: 100}\nprice_per_hour: 3.6\n");
  const double duration_s = number(flat, "duration_s");
  EXPECT_NEAR(number(flat, "energy_j"), 100 * duration_s, 1e-6);
  const double tokens = sum(read_csv(folder_of_run_ / "requests.csv"), "output_tokens");
  EXPECT_NEAR(number(flat, "energy_j_per_token"), 100 * duration_s / tokens, 1e-6);
  EXPECT_NEAR(number(flat, "dollars_per_million_tokens"), 3.6 / 3600 * duration_s / tokens * 1e6, 1e-6);
  const double by_use = number(run("power: {idle_w: 0, peak_w: 100}\n"), "energy_j");
  EXPECT_THAT(by_use, ::testing::AllOf(::testing::Gt(0.05 * 100 * duration_s), ::testing::Lt(0.9 * 100 * duration_s)));
  EXPECT_NEAR(number(run("power: {idle_w: 40, peak_w: 100}\n"), "energy_j"), 40 * duration_s + 0.6 * by_use, 1e-5);
  const CsvTable four = run("power: {idle_w: 100, peak_w: 100}\n", "replicas: 2\nparallel: {tp: 2}\n");
  EXPECT_NEAR(number(four, "energy_j"), 400 * number(four, "duration_s"), 1e-5);
}

TEST_F(BillTest, MissingFiguresAreNamed) {
  const CsvTable none = run("");
  for (const char* column : {"energy_j", "energy_j_per_token", "dollars_per_million_tokens", "jct_p50_ms"})
    EXPECT_EQ(text(none, column), "");
  EXPECT_THAT(
      out_,
      HasSubstr(
          "no energy and price of tokens for H100 SXM 80GB: add 'power: {idle_w: WATTS, peak_w: WATTS}' and 'price_per_hour: USD' to "));
  EXPECT_NE(text(run("price_per_hour: 1\n"), "dollars_per_million_tokens"), "");
  EXPECT_THAT(out_, HasSubstr("no energy for H100 SXM 80GB: add 'power"));
  run("power: {idle_w: 1, peak_w: 2}\nprice_per_hour: 1\n");
  EXPECT_THAT(out_, Not(HasSubstr("no energy")));
}

// A session's time is that of all its turns and the pauses between them.
TEST_F(BillTest, JobCompletionTimeOfSessions) {
  write("turns.csv",
        "arrival_ns,prompt_tokens,output_tokens,session,delay_ns\n0,100,5,1,\n,120,5,1,1000000\n5000000,80,4,2,\n6000000,90,4,,\n");
  write("turns.yaml", "model: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\ntrace: {file: turns.csv}\n");
  call_ok({"run", "turns.yaml", "--out", "t"});
  const CsvTable requests = read_csv("t/requests.csv"), summary = read_csv("t/summary.csv");
  std::map<std::string, std::pair<double, double>> sessions;  // first arrival, last token
  for (const auto& row : requests.rows) {
    const double arrival = std::stod(row.at(requests.at("arrival_ns"))), last = std::stod(row.at(requests.at("last_token_ns")));
    const auto [at, is_new] = sessions.try_emplace(row.at(requests.at("session")), arrival, last);
    if (!is_new) at->second = {std::min(at->second.first, arrival), std::max(at->second.second, last)};
  }
  ASSERT_EQ(sessions.size(), 3U);
  const double first = sessions["1"].second - sessions["1"].first, second = sessions["2"].second - sessions["2"].first;
  EXPECT_GT(first, 1e6 + second);
  EXPECT_NEAR(number(summary, "jct_p50_ms"), (first + second) / 2 * 1e-6, 1e-6);
  EXPECT_NEAR(number(summary, "jct_max_ms"), first * 1e-6, 1e-6);
}

// Limits of results that an experiment expects.

struct ExpectationsTest : SmallTest {
  static Called run(const std::string& limits, const std::vector<std::string>& more = {}) {
    return call({"run", "small.yaml", "--set", "expect=" + limits}, more);
  }
};

TEST_F(ExpectationsTest, TheExitStatusSaysIfTheyAreMet) {
  const Called met = run("{ttft_p99_ms: {max: 1000000}, attained: {min: 0}}");
  EXPECT_EQ(met.status, 0) << met.err;
  const std::string id = run_id("results/small");
  EXPECT_THAT(read("results/small/expectations.csv"), has_all({id + ",ttft_p99_ms,max,1000000,", id + ",slo_attainment_frac,min,0,"}));
  const Called unmet = run("{ttft_p99_ms: {max: 0.5}, requests: {min: 60, max: 60}}");
  EXPECT_EQ(unmet.status, kUnmetStatus);
  EXPECT_THAT(unmet.err, has_all({"kvlab: run " + id + ": ttft_p99_ms ", " > 0.500\n"}));
  EXPECT_THAT(unmet.err, Not(HasSubstr("requests")));
  EXPECT_THAT(read("results/small/expectations.csv"), HasSubstr(",false\n"));
  EXPECT_EQ(run_id("results/small"), id) << "limits are no part of a run";
  EXPECT_EQ(call({"run", "small.yaml"}).status, 0);
  EXPECT_FALSE(fs::exists("results/small/expectations.csv")) << "the experiment expects nothing now";
}

TEST_F(ExpectationsTest, EveryRunAndSearchMustMeetThem) {
  const Called called = run("{requests_per_s: {min: 6}}", {"--set", "trace.generate.arrival.poisson.rate_per_s=[1, 8]"});
  EXPECT_EQ(called.status, kUnmetStatus);
  EXPECT_EQ(std::count(called.err.begin(), called.err.end(), '\n'), 1) << called.err;
  EXPECT_THAT(called.err, HasSubstr(run_id("results/small", 0)));
  const Called search =
      run("{max_rate/s: {min: 1000}}", {"--set", "search={rate: [1, 64], ttft_p99_ms: 200}", "--set", "slo={ttft_ms: 200}"});
  EXPECT_EQ(search.status, kUnmetStatus) << search.err;
  EXPECT_THAT(search.err, has_all({"search_rate_per_s ", " < 1,000\n"}));
}

TEST_F(ExpectationsTest, WrongOnesAreToldBeforeTheRuns) {
  const std::pair<const char*, const char*> cases[] = {
      {"{ttft_p98_ms: {max: 1}}", "'expect': no metric 'ttft_p98_ms'"},
      {"{attaned: {max: 1}}", "did you mean 'attained'?"},
      {"{ttft_p99_ms: {maks: 1}}", "unknown key 'maks' in 'expect: ttft_p99_ms'"},
      {"{ttft_p99_ms: {}}", "'ttft_p99_ms' needs a limit: {max: 1000} or {min: 0.9}"},
      {"{ttft_p99_ms: {min: 2, max: 1}}", "no value is at least 2 and at most 1"},
      {"{ttft_p99_ms: {max: 1e999}}", "not a number: '1e999'"},
  };
  for (const auto& [limits, message] : cases) {
    const Called called = run(limits);
    EXPECT_EQ(called.status, 2) << limits;
    EXPECT_THAT(called.err, HasSubstr(message));
    EXPECT_FALSE(fs::exists("results/small"));
  }
  EXPECT_THAT(run("{kl_to_full: {max: 1}}").err, HasSubstr("'expect': these runs have no metric 'kl_to_full'"));
}

// Otherwise a figure of that metric, or a limit, would be refused.
TEST_F(ExpectationsTest, EveryColumnWithNumbersIsKnown) {
  call_ok({"run", "small.yaml"});
  const CsvTable table = read_csv("results/small/summary.csv");
  const auto& known = known_metrics();
  for (std::size_t c = table.at("seed") + 1; c < table.columns.size(); ++c) {
    double value = 0;
    if (!parse_real(table.rows[0][c], value)) continue;
    EXPECT_TRUE(std::binary_search(known.begin(), known.end(), table.columns[c])) << table.columns[c];
  }
}

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
