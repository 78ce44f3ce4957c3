#include <cmath>
#include <functional>
#include <map>

#include "app/compare/compare.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"
#include "tests/short_run.h"
#include "tests/test_files.h"
#include "traces/logs/real_log.h"

namespace kvlab {
namespace {

double value_of(const std::vector<MetricRow>& rows, const std::string& metric, const std::string& statistic) {
  for (const MetricRow& row : rows)
    if (row.metric == metric && row.statistic == statistic) return row.value_ms;
  ADD_FAILURE() << metric << " " << statistic;
  return 0;
}

TEST(LatencyStatistics, ByHand) {
  // TTFT 100, 300, 200 ms; E2E 1100, 300, 700 ms; TPOT 250 and 500 ms (one request has a single token).
  const auto rows = latency_statistics({{3, 10, 10.1, 11.1, 5}, {1, 10, 10.3, 10.3, 1}, {2, 10, 10.2, 10.7, 2}});
  EXPECT_NEAR(value_of(rows, "ttft", "mean"), 200, 1e-6);
  EXPECT_NEAR(value_of(rows, "ttft", "p90"), 280, 1e-6);
  EXPECT_NEAR(value_of(rows, "e2e", "p50"), 700, 1e-6);
  EXPECT_NEAR(value_of(rows, "tpot", "mean"), 375, 1e-6);
  EXPECT_NEAR(value_of(rows, "ttft_first120", "mean"), 200, 1e-6);
}

TEST(LatencyStatistics, RealLogGivesThePublishedMeans) {
  const std::string log = data_file("vllm-reference/RTX4090-llama-3.1-8b/requests.jsonl");
  if (!fs::exists(log)) GTEST_SKIP() << log << " is not there; set KVLAB_DATA";
  const auto rows = latency_statistics(read_real_log(log).requests);
  EXPECT_NEAR(value_of(rows, "ttft", "mean"), 65456.6, 0.05);
  EXPECT_NEAR(value_of(rows, "e2e", "mean"), 86578.3, 0.05);
  EXPECT_NEAR(value_of(rows, "tpot", "mean"), 32.45, 0.005);
}

using RealLogs = AppTest;

TEST_F(RealLogs, ErrorsNameTheLine) {
  const auto log_error = [&](const std::string& text) {
    write("log.jsonl", text);
    return error_of([] { read_real_log("log.jsonl"); });
  };
  const std::string good = R"({"output_toks": 2, "arrival_time": 1, "queued_ts": 1, "first_token_ts": 2, "last_token_ts": 3})"
                           "\n";
  EXPECT_EQ(log_error(""), "log.jsonl: has no requests");
  EXPECT_EQ(log_error(good + "{\n"), "log.jsonl:2: not JSON from byte 2 on");
  EXPECT_EQ(log_error(good + R"({"output_toks": 2})"), "log.jsonl:2: missing key 'arrival_time'");
  EXPECT_EQ(log_error(R"({"output_toks": 2, "arrival_time": 1, "queued_ts": 5, "first_token_ts": 2, "last_token_ts": 3})"),
            "log.jsonl:1: 'first_token_ts' comes before 'queued_ts'");
  EXPECT_EQ(log_error(R"({"arrival_time": ")" + std::string(1000, 'x') + "\"}"),
            "log.jsonl:1: 'arrival_time' = \"" + std::string(59, 'x') + "... is not supported; supported: a number");
  EXPECT_EQ(log_error(good + R"({"arrival_time": )" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}"),
            "log.jsonl:2: values in it are nested deeper than 64 levels");
  EXPECT_EQ(log_error(good), "no error");
}

TEST_F(RealLogs, TimesThatAreNoSecondsAreRefused) {
  const auto row = [](double last) {
    return R"({"output_toks": 2, "arrival_time": 1, "queued_ts": 1700000000, "first_token_ts": 1700000001, "last_token_ts": )" +
           std::to_string(last) + "}\n";
  };
  write("log.jsonl", row(1700000002) + row(1709000000));
  EXPECT_EQ(read_real_log("log.jsonl").requests.size(), 2U);
  write("log.jsonl", row(1700000002) + row(1.7e9 + 1e7));
  EXPECT_EQ(error_of([] { read_real_log("log.jsonl"); }),
            "log.jsonl: its times span 1e+07 s, and no run lasts longer than 9.2e6 s (106 days): are the times in seconds?");
}

TEST(PaddedBatch, Sizes) {
  const std::vector<std::pair<int, int>> cases = {{1, 1},  {2, 2},     {3, 4},     {4, 4},     {5, 8},    {8, 8},
                                                  {9, 16}, {256, 256}, {257, 272}, {512, 512}, {513, 513}};
  for (const auto& [batch, padded] : cases) EXPECT_EQ(padded_batch(batch), padded) << batch;
}

// A tail made by stepping a batch of 64 requests, whose first tokens come in pairs and whose outputs differ.
std::vector<ServedRequest> made_up_tail(const std::function<double(std::int64_t batch)>& duration) {
  std::vector<ServedRequest> requests;
  for (int i = 0; i < 64; ++i) requests.push_back({0.5 * i, 0.5 * i, i / 2 * 0.01, 0, 40 + (i * 37) % 211});
  std::vector<std::int64_t> left;
  for (const ServedRequest& r : requests) left.push_back(r.output_tokens - 1);
  double now = 31 * 0.01;  // the last first token; the others' earlier tokens are taken as steps of the same kind
  std::int64_t running = 64;
  while (running > 0) {
    now += duration(running);
    for (std::size_t i = 0; i < requests.size(); ++i)
      if (left[i] > 0 && --left[i] == 0) {
        requests[i].last_token_s = now;
        --running;
      }
  }
  return requests;
}

// In the second, steps of a few requests are far shorter than half of the median: 6.5 ms where a full batch takes 38 ms.
TEST(DecodeStepTimes, GivesBackTheDurationsOfAMadeUpTail) {
  for (const auto& [least, slope] : {std::pair{0.010, 0.0001}, {0.006, 0.0005}}) {
    const auto duration = [&, &a = least, &b = slope](std::int64_t batch) { return a + b * static_cast<double>(padded_batch(batch)); };
    const auto times = decode_step_times(made_up_tail(duration));
    ASSERT_GE(times.size(), 5U);
    EXPECT_TRUE(least > 0.006 || times.front().padded_batch == 1);
    for (const BatchTime& t : times) EXPECT_NEAR(t.mean_ms, duration(t.padded_batch) * 1e3, 0.02 * t.mean_ms) << t.padded_batch;
  }
  EXPECT_TRUE(decode_step_times({}).empty());
  EXPECT_TRUE(decode_step_times({{0, 0, 1, 2, 10}}).size() <= 1);
}

using ValidateTest = SmallTest;

// An engine's log as a simulation tells it, its times in `unit` per second.
std::string log_of(const CsvTable& requests, double unit = 1) {
  std::string log;
  const auto seconds = [&](const std::vector<std::string>& row, const char* column) {
    return std::to_string(std::stod(row[requests.at(column)]) * 1e-9 * unit + 1000);
  };
  for (const auto& row : requests.rows)
    log += "{\"output_toks\": " + row[requests.at("output_tokens")] + ", \"arrival_time\": " + seconds(row, "arrival_ns") +
           ", \"queued_ts\": " + seconds(row, "queued_ns") + ", \"first_token_ts\": " + seconds(row, "first_token_ns") +
           ", \"last_token_ts\": " + seconds(row, "last_token_ns") + "}\n";
  return log;
}

// The simulator against its own log: every difference is zero. The first 120 requests have rows of their own where there are more.
TEST_F(ValidateTest, ARunAgreesWithItself) {
  for (const auto& [requests, num_rows] : {std::pair{"120", 15U}, {"121", 20U}}) {
    call_ok({"run", "small.yaml", "--force", "--set", std::string("trace.generate.requests=") + requests});
    write("log.jsonl", log_of(read_csv("results/small/requests.csv")));
    call_ok({"validate", "--requests", "log.jsonl", "--against", "results/small"});
    const CsvTable validation = read_csv("results/small/validation.csv");
    EXPECT_EQ(validation.columns, (std::vector<std::string>{"metric", "statistic", "real", "simulated", "simulated_lo", "simulated_hi",
                                                            "diff_frac", "real_requests", "simulated_requests"}));
    EXPECT_EQ(std::tuple(validation.rows.at(0).at(7), validation.rows.at(0).at(8)), std::tuple(requests, requests));
    EXPECT_EQ(validation.rows.back().at(7), "120") << "of all, or of the first 120 requests";
    EXPECT_EQ(validation.rows.size(), num_rows);
    for (const auto& row : validation.rows) EXPECT_NEAR(std::stod(row[6]), 0, 1e-4) << row[0] << " " << row[1];
    EXPECT_EQ(read_csv("results/small/throughput.csv").columns.size(), 3U);
    EXPECT_EQ(read_csv("results/small/validation_steps.csv").columns.size(), 5U);
  }
}

TEST_F(ValidateTest, RefusesSeveralConfigurations) {
  write("small.yaml", std::string(kSmall) + "scheduler: [vllm_v1, sarathi]\n");
  call_ok({"run", "small.yaml"});
  write("log.jsonl", R"({"output_toks": 2, "arrival_time": 1, "queued_ts": 1, "first_token_ts": 2, "last_token_ts": 3})");
  EXPECT_THAT(error_of_call({"validate", "--requests", "log.jsonl", "--against", "results/small"}),
              HasSubstr("'scheduler' varies (vllm_v1, sarathi)"));
}

TEST_F(ValidateTest, AComparisonStaysAsLongAsItsRuns) {
  write("small.yaml", std::string(kSmall) + "scheduler: vllm_v1\nseeds: 2\n");
  const auto run = [](const std::vector<std::string>& more) { call_ok({"run", "small.yaml", "--quiet"}, more); };
  const auto compare = [] { EXPECT_EQ(call({"validate", "--requests", "log.jsonl", "--against", "results/small", "--quiet"}).status, 0); };
  const auto files = [] {
    return read("results/small/validation.csv") + read("results/small/throughput.csv") + read("results/small/validation_steps.csv");
  };
  const auto none_is_left = [] {
    const fs::path out = "results/small";
    return !exists(out / "validation.csv") && !exists(out / "throughput.csv") && !exists(out / "validation_steps.csv");
  };
  run({"--set", "seeds=1"});
  write("log.jsonl", log_of(read_csv("results/small/requests.csv")));
  compare();
  const std::string compared = files();
  run({"--set", "seeds=1"});
  EXPECT_EQ(files(), compared);
  run({});  // a run more
  EXPECT_TRUE(none_is_left());
  compare();
  run({"--set", "seeds=1"});  // a run less
  EXPECT_TRUE(none_is_left());
  compare();
  run({"--set", "seeds=1", "--force"});
  EXPECT_TRUE(none_is_left());
}

// Milliseconds are remarked on, for a log of them may be short enough; microseconds are refused, and nothing is written.
TEST_F(ValidateTest, ALogInAnotherUnit) {
  call_ok({"run", "small.yaml", "--quiet", "--set", "trace.generate.requests=120"});
  const CsvTable requests = read_csv("results/small/requests.csv");
  const auto compared = [&](double unit) {
    write("log.jsonl", log_of(requests, unit));
    return call({"validate", "--requests", "log.jsonl", "--against", "results/small"});
  };
  const std::string remark = "the log's median end-to-end latency is 1000 times the simulation's: are its times in seconds?\n";
  const Called microseconds = compared(1e6);
  EXPECT_EQ(microseconds.status, 2);
  EXPECT_THAT(microseconds.err, HasSubstr("are the times in seconds?"));
  EXPECT_FALSE(fs::exists("results/small/validation.csv"));
  const Called milliseconds = compared(1e3);
  EXPECT_EQ(milliseconds.status, 0) << milliseconds.err;
  EXPECT_THAT(milliseconds.out, HasSubstr(remark));
  EXPECT_THAT(compared(1).out, Not(HasSubstr("are its times in seconds?")));
}

// The validation experiments against the logs of a real engine, as anybody would run them. Needs the data: KVLAB_DATA.

struct FidelityTest : AppTest {
  void SetUp() override {
    if (short_run()) GTEST_SKIP() << "a whole log takes too long with KVLAB_SHORT set";
  }
  // diff_frac by "metric statistic"; empty where the data is not there.
  std::map<std::string, double> differences(const std::string& card, const std::string& log) {
    if (!fs::exists(data_file("vllm-reference/" + log))) return {};
    ::setenv("KVLAB_DATA", data_file("").c_str(), 1);
    call_ok({"run", KVLAB_SOURCE_DIR "/experiments/validate_" + card + ".yaml", "--out", "validated", "--quiet"});
    std::map<std::string, double> found;
    for (const auto& row : read_csv("validated/validation.csv").rows) found[row[0] + " " + row[1]] = std::stod(row[6]);
    return found;
  }
};

void expect_within(const std::map<std::string, double>& found, const std::string& metric, double limit) {
  for (const char* statistic : {"mean", "p50", "p90", "p95", "p99"}) {
    const std::string name = metric + " " + statistic;
    EXPECT_LE(std::abs(found.at(name)), limit) << name << ": " << found.at(name);
  }
}

TEST_F(FidelityTest, Rtx4090) {
  const auto found = differences("rtx4090", "RTX4090-llama-3.1-8b/requests.jsonl");
  if (found.empty()) GTEST_SKIP() << "the engine's log is not there; set KVLAB_DATA";
  for (const char* metric : {"ttft", "tpot", "e2e"}) expect_within(found, metric, 0.015);
}

TEST_F(FidelityTest, RtxPro6000) {
  const auto found = differences("rtxpro6000", "RTXPRO6000-llama-3.1-8b/requests.jsonl");
  if (found.empty()) GTEST_SKIP() << "the engine's log is not there; set KVLAB_DATA";
  expect_within(found, "tpot", 0.03);
  expect_within(found, "e2e", 0.03);
  expect_within(found, "ttft", 0.06);
  EXPECT_LE(std::abs(found.at("ttft_first120 mean")), 0.10);
  EXPECT_LE(std::abs(found.at("ttft_first120 p50")), 0.13);
}

// Two GPUs: the all-reduce is the card's of vLLM 0.19, measured by others; nothing is fitted to this log.
TEST_F(FidelityTest, Qwen3Of32BOnTwoRtxPro6000) {
  const auto found = differences("qwen3_32b_tp2", "RTXPRO6000-qwen3-32b-tp2/requests.jsonl");
  if (found.empty()) GTEST_SKIP() << "the engine's log is not there; set KVLAB_DATA";
  for (const char* metric : {"ttft", "tpot", "e2e"}) expect_within(found, metric, 0.03);
  // The median is of two requests with a step of 0.37 s between them: 2.7 or 6.6 % by the run, the latter in most.
  for (const char* statistic : {"mean", "p90", "p95", "p99"})
    EXPECT_LE(std::abs(found.at(std::string("ttft_first120 ") + statistic)), 0.06) << statistic;
  EXPECT_LE(std::abs(found.at("ttft_first120 p50")), 0.07);
  EXPECT_THAT(read("validated/manifest.json"), HasSubstr("all_reduce over 2 ranks by vllm 0.19.0, "));
}

}  // namespace
}  // namespace kvlab
