#include <algorithm>
#include <map>

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

}  // namespace
}  // namespace kvlab
