// Limits of results that an experiment expects.
#include <algorithm>

#include "app/runs/report/known_metrics.h"
#include "app/runs/report/sweep_keys.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

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

TEST_F(ExpectationsTest, EveryRunMustMeetThem) {
  const Called called = run("{requests_per_s: {min: 6}}", {"--set", "trace.generate.arrival.poisson.rate_per_s=[1, 8]"});
  EXPECT_EQ(called.status, kUnmetStatus);
  EXPECT_EQ(std::count(called.err.begin(), called.err.end(), '\n'), 1) << called.err;
  EXPECT_THAT(called.err, HasSubstr(run_id("results/small", 0)));
}

TEST_F(ExpectationsTest, OfASearch) {
  const Called called =
      run("{max_rate/s: {min: 1000}}", {"--set", "search={rate: [1, 64], ttft_p99_ms: 200}", "--set", "slo={ttft_ms: 200}"});
  EXPECT_EQ(called.status, kUnmetStatus) << called.err;
  EXPECT_THAT(called.err, has_all({"search_rate_per_s ", " < 1,000\n"}));
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
