// Logs of other tools. Inputs are written by hand from each format's definition.
#include <fmt/format.h>
#include <sys/stat.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "app/results/results.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"
#include "traces/logs/real_log.h"

namespace kvlab {
namespace {

using Exchange = AppTest;
using Json = nlohmann::json;

const LogStatistic* statistic_in(const RealLog& log, const std::string& metric, const std::string& statistic) {
  for (const LogStatistic& s : log.statistics)
    if (s.metric == metric && s.statistic == statistic) return &s;
  return nullptr;
}

double ms_of(const RealLog& log, const std::string& metric, const std::string& statistic) {
  const LogStatistic* const s = statistic_in(log, metric, statistic);
  return s == nullptr ? std::nan("") : s->value_ms;
}

TEST_F(Exchange, BenchTotalsAreStatistics) {
  write("bench.json", R"({"completed": 8, "failed": 2, "request_throughput": 1.5, "mean_ttft_ms": 150.0, "median_ttft_ms": 120.5,
    "std_ttft_ms": 20, "p99_ttft_ms": 400, "mean_itl_ms": 9.5, "mean_e2el_ms": 900, "p99_9_ttft_ms": 1, "mean_ttft": 3})");
  const RealLog log = read_real_log("bench.json");
  EXPECT_EQ(std::tuple(log.requests.empty(), log.num_completed, log.statistics.size()), std::tuple(true, 8, 6U));
  EXPECT_EQ(std::tuple(ms_of(log, "ttft", "p50"), ms_of(log, "e2e", "mean"), ms_of(log, "itl", "mean")), std::tuple(120.5, 900, 9.5));
  EXPECT_THAT(log.note, has_all({"2 of the log's 10 requests failed and are left out\n", "--save-detailed (vllm bench serve)"}));
}

TEST_F(Exchange, AiperfReportHasUnits) {
  write("report.json", R"({
  "schema_version": "1.4",
  "request_throughput": {"unit": "requests/sec", "avg": 2.0},
  "request_count": {"unit": "requests", "avg": 5.0},
  "error_request_count": {"unit": "requests", "avg": 1.0},
  "request_latency": {"unit": "s", "avg": 1.5, "p50": 1.25, "count": 5, "sum": 7.5},
  "time_to_first_token": {"unit": "ms", "avg": 200.5, "p99": 300, "std": 4, "min": 100, "max": null},
  "inter_token_latency": {"unit": "us", "avg": 12500}
})");
  const RealLog log = read_real_log("report.json");
  EXPECT_EQ(log.num_completed, 5);
  EXPECT_NEAR(ms_of(log, "e2e", "mean"), 1500, 1e-9);
  EXPECT_NEAR(ms_of(log, "e2e", "p50"), 1250, 1e-9);
  EXPECT_EQ(statistic_in(log, "e2e", "count"), nullptr);
  EXPECT_NEAR(ms_of(log, "tpot", "mean"), 12.5, 1e-9) << "AIPerf's inter-token latency is a mean per request";
  EXPECT_EQ(statistic_in(log, "ttft", "max"), nullptr);
  EXPECT_THAT(log.note, HasSubstr("1 of the log's 6 requests failed"));
  write("report.json", R"({"request_latency": {"unit": "hours", "avg": 1}})");
  EXPECT_THAT(error_of([] { read_real_log("report.json"); }),
              HasSubstr("report.json:1: 'request_latency.avg' is in \"hours\"; known: s, ms, us, ns"));
}

TEST_F(Exchange, ModelsOfLogs) {
  const auto model_of = [](const std::string& text) {
    write("log", text);
    return read_real_log("log").model;
  };
  const std::string bench = R"({"request_throughput": 1.5, "mean_ttft_ms": 150.0, "mean_e2el_ms": 900)";
  EXPECT_EQ(model_of(bench + "}"), "");
  EXPECT_EQ(model_of(bench + R"(, "model_id": "org/A"})"), "org/A");
  EXPECT_EQ(model_of(bench + R"(, "server_info": {"model_path": "/models/A"}})"), "/models/A");
  const std::string aiperf = R"({"request_latency": {"unit": "ms", "avg": 1.5})";
  EXPECT_EQ(model_of(aiperf + R"(, "input_config": {"endpoint": {"model_names": ["org/A"]}}})"), "org/A");
  EXPECT_EQ(model_of(aiperf + R"(, "input_config": {"endpoint": {"model_names": ["a", "b"]}}})"), "") << "of several";
  EXPECT_EQ(model_of(aiperf + R"(, "run_info": {"cli_command": "aiperf profile --model org/A --url http://localhost:8000"}})"), "org/A");
  EXPECT_EQ(model_of(aiperf + R"(, "run_info": {"cli_command": "aiperf profile --model 'org/A' --url 'http://x'"}})"), "org/A");
  EXPECT_EQ(model_of(aiperf + R"(, "run_info": {"cli_command": "aiperf profile --url x --model=org/A"}})"), "org/A");
  Json guide = Json::parse(R"({"metadata": {}, "args": {"model": "org/A"}, "benchmarks": [{"config": {"backend": {"model": "org/B"}},
    "metrics": {"request_latency": {"successful": {"mean": 2.0}}}}]})");
  EXPECT_EQ(model_of(guide.dump()), "org/B");
  guide["benchmarks"][0].erase("config");
  EXPECT_EQ(model_of(guide.dump()), "org/A");
}

constexpr const char* kGuide = R"({
 "metadata": {"version": 2}, "config": {},
 "benchmarks": [{
  "metrics": {"request_totals": {"successful": 3, "errored": 1, "incomplete": 2, "total": 6}},
  "requests": {
   "successful": [
    {"request_start_time": 1767225600.5, "time_to_first_token_ms": 250.0, "request_latency": 2.0, "output_tokens": 4,
     "info": {"timings": {"last_token_iteration": 1767225602.25}}},
    {"request_start_time": 1767225601.0, "time_to_first_token_ms": 100.0, "request_latency": 0.5, "output_tokens": 1,
     "info": {"timings": {"last_token_iteration": null}}}],
   "errored": [{}], "incomplete": [{}, {}]}}]
})";

TEST_F(Exchange, GuideLlmRowsAreRequests) {
  write("benchmarks.json", kGuide);
  const RealLog log = read_real_log("benchmarks.json");
  ASSERT_EQ(log.requests.size(), 2U);
  EXPECT_TRUE(log.has_clock);
  EXPECT_NEAR(log.requests[0].ttft_ms(), 250, 1e-3);
  EXPECT_NEAR(log.requests[0].e2e_ms(), 1750, 1e-3) << "to the last token, not to the end of the connection";
  EXPECT_NEAR(log.requests[0].tpot_ms(), 500, 1e-3);
  EXPECT_NEAR(log.requests[1].e2e_ms(), 500, 1e-3);
  EXPECT_EQ(log.note,
            "1 of the log's 6 requests failed and are left out\n2 of the log's 6 requests were cut off and are left out\nit has rows of 2 "
            "of its 3 completed requests\n");
}

TEST_F(Exchange, GuideLlmWithoutRowsHasDistributions) {
  Json root = Json::parse(kGuide);
  root["benchmarks"][0]["requests"] = {{"successful", nullptr}};
  root["benchmarks"][0]["metrics"]["request_latency"]["successful"] = {
      {"mean", 2.0}, {"std_dev", 0.5}, {"min", 1.0}, {"max", 3.0}, {"percentiles", {{"p50", 1.9}, {"p99", 2.9}}}};
  root["benchmarks"][0]["metrics"]["inter_token_latency_ms"]["successful"] = {{"mean", 20.0}, {"percentiles", {{"p50", 19.0}}}};
  write("benchmarks.json", root.dump());
  const RealLog log = read_real_log("benchmarks.json");
  EXPECT_NEAR(ms_of(log, "e2e", "p99"), 2900, 1e-9) << "its latency is in seconds";
  EXPECT_NEAR(ms_of(log, "e2e", "std"), 500, 1e-9);
  EXPECT_NEAR(ms_of(log, "itl", "mean"), 20, 1e-9) << "weighted by gaps: the mean of all gaps";
  EXPECT_EQ(statistic_in(log, "itl", "p50"), nullptr);
  root["benchmarks"].push_back(root["benchmarks"][0]);
  write("benchmarks.json", root.dump());
  EXPECT_THAT(error_of([] { read_real_log("benchmarks.json"); }), HasSubstr("holds 2 benchmarks, and a validation compares one"));
}

// Ten requests of two engines: 2 up to 0.1 s, 5 up to 0.25, 9 up to 0.5, one beyond.
constexpr const char* kMetrics = R"(# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.25",model_name="m"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="m"} 5.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 5.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 5.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.25",model_name="m"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.5",model_name="m"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf",model_name="m"} 5.0
vllm:time_to_first_token_seconds_count{engine="1",model_name="m"} 5.0
vllm:time_to_first_token_seconds_sum{engine="1",model_name="m"} 2.0
vllm:num_requests_running{engine="0",model_name="m"} 3.0
)";

TEST_F(Exchange, ImpossibleHistogramsAreRefusedWithLineAndSeries) {
  const std::string ttft = "vllm:time_to_first_token_seconds";
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {"le=\"0.25\",model_name=\"m\"} 3.0", "le=\"0.25\",model_name=\"m\"} 7.0",
       "metrics.txt:5: " + ttft + "_bucket up to 0.5 s has 5 observations, and a smaller limit has 7 (metrics.txt:4)"},
      {"_count{engine=\"0\",model_name=\"m\"} 5.0", "_count{engine=\"0\",model_name=\"m\"} 6.0",
       "metrics.txt:7: " + ttft + "_count = 6, and its bucket with le=\"+Inf\" has 5 (metrics.txt:6)"},
      {"_sum{engine=\"0\",model_name=\"m\"} 1.0", "_sum{engine=\"0\",model_name=\"m\"} -6.5",
       "metrics.txt:8: " + ttft + "_sum = -6.5 is no number from 0"},
      {"_sum{engine=\"0\",model_name=\"m\"} 1.0", "_sum{engine=\"0\",model_name=\"m\"} 9",
       "_sum = 9 s, and its buckets allow 0.7 to 1.6 s"},
      {"_sum{engine=\"0\",model_name=\"m\"} 1.0", "_sum{engine=\"0\",model_name=\"m\"} 0.1",
       "_sum = 0.1 s, and its buckets allow 0.7 to 1.6 s"},
      {"le=\"+Inf\",model_name=\"m\"} 5.0", "le=\"0.9\",model_name=\"m\"} 5.0", "has no bucket with le=\"+Inf\": the file is cut short"},
      {"le=\"0.25\",model_name=\"m\"} 3.0", "le=\"0.25\",model_name=\"m\"} 2.5", "_bucket{le=\"0.25\"} = 2.5 is no number of observations"},
      {"le=\"0.25\",model_name=\"m\"} 3.0", "le=\"0.25\",model_name=\"m\"} 1" + std::string(200'000, '0'), "is no number"},
      {"bucket{engine=\"1\",le=\"0.1\"", "bucket{engine=\"1\",le=\"0.2\"", "has other limits than the same histogram of another engine"},
  };
  for (const auto& [line, changed, message] : cases) {
    std::string text = kMetrics;
    write("metrics.txt", text.replace(text.find(line), line.size(), changed));
    EXPECT_THAT(error_of([] { read_real_log("metrics.txt"); }), HasSubstr(message)) << changed.substr(0, 80);
  }
}

TEST_F(Exchange, StatisticsOutOfOrderAreRefused) {
  const auto error = [](const std::string& text) {
    write("log", text);
    return error_of([] { read_real_log("log"); });
  };
  const std::string bench = R"({"completed": 8, "request_throughput": 1.5,
  "median_ttft_ms": 500, "p99_ttft_ms": 100})";
  EXPECT_EQ(error(bench),
            "log:2: 'median_ttft_ms' = 500 ms is above 'p99' = 100 ms of the same ttft: values of one distribution cannot be so");
  EXPECT_THAT(error(R"({"request_throughput": 1.5, "mean_ttft_ms": -3})"), HasSubstr("log:1: 'mean_ttft_ms' is no number >= 0: -3"));
  const std::string aiperf = R"({"request_latency": {"unit": "ms", "avg": 9, "min": 1, "max": 5}})";
  EXPECT_THAT(error(aiperf), HasSubstr("log:1: 'request_latency.avg' = 9 ms is above 'max' = 5 ms of the same e2e"));
  EXPECT_THAT(error(R"({"request_latency": {"unit": "ms", "avg": 1, "min": 2}})"),
              HasSubstr("'request_latency.min' = 2 ms is above 'mean' = 1 ms"));
  EXPECT_THAT(error(R"({"metadata": {}, "benchmarks": [{"metrics": {"request_latency": {"successful": {"mean": 2.0,
    "percentiles": {"p50": 3, "p90": 2}}}}}]})"),
              HasSubstr("log:2: 'metrics.request_latency.successful.p50' = 3000 ms is above 'p90' = 2000 ms"));
  EXPECT_EQ(error(R"({"request_throughput": 1.5, "mean_ttft_ms": 3, "p50_ttft_ms": 3.001, "p99_ttft_ms": 3.0})"), "no error") << "rounded";
}

TEST_F(Exchange, RowsWithTheIdOfAnEarlierOneAreLeftOut) {
  Json guide = Json::parse(kGuide);
  Json& rows = guide["benchmarks"][0]["requests"]["successful"];
  rows[0]["request_id"] = "a";
  rows[1]["request_id"] = "a";
  write("log", guide.dump());
  EXPECT_EQ(read_real_log("log").requests.size(), 1U);
  EXPECT_THAT(read_real_log("log").note, HasSubstr("1 of the log's 2 requests have the id of an earlier one and are left out\n"));
  const std::string row =
      R"({"request_id": 7, "output_toks": 2, "arrival_time": 1, "queued_ts": 1, "first_token_ts": 2, "last_token_ts": 3})";
  write("log", row + "\n" + row + "\n");
  EXPECT_EQ(read_real_log("log").requests.size(), 1U);
  EXPECT_THAT(read_real_log("log").note, HasSubstr("have the id of an earlier one"));
}

TEST_F(Exchange, HistogramsBoundQuantiles) {
  write("metrics.txt", kMetrics);
  const RealLog log = read_real_log("metrics.txt");
  EXPECT_EQ(log.model, "m");
  EXPECT_NEAR(ms_of(log, "ttft", "mean"), 300, 1e-9) << "sum and count are exact";
  const LogStatistic* const p50 = statistic_in(log, "ttft", "p50");
  ASSERT_NE(p50, nullptr);
  EXPECT_NEAR(p50->bounds_ms->first, 100, 1e-9);
  EXPECT_NEAR(p50->bounds_ms->second, 250, 1e-9);
  EXPECT_NEAR(p50->value_ms, 250, 1e-9) << "the fifth of ten: the end of the bucket that holds ranks 2 to 5";
  EXPECT_NEAR(ms_of(log, "ttft", "p90"), 500, 1e-9);
  const LogStatistic* const p95 = statistic_in(log, "ttft", "p95");
  EXPECT_TRUE(std::isnan(p95->value_ms)) << "the last bucket has no upper limit";
  EXPECT_NEAR(p95->bounds_ms->first, 500, 1e-9);
  EXPECT_TRUE(std::isinf(p95->bounds_ms->second));
  write("metrics.txt", std::string(kMetrics) + "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"other\"} 5.0\n");
  EXPECT_THAT(error_of([] { read_real_log("metrics.txt"); }), HasSubstr("metrics.txt:16: metrics of another model than 'm': 'other'"));
  write("metrics.txt", "# TYPE x gauge\nvllm:num_requests_running{engine=\"0\"} 3\n");
  EXPECT_THAT(error_of([] { read_real_log("metrics.txt"); }), HasSubstr("have no observations"));
}

// Logs and inputs of other tools, as users name them.

using LogKinds = SmallTest;

constexpr const char* kBench =
    R"({"backend": "vllm", "completed": 2, "failed": 1, "input_lens": [10, 20, 5], "output_lens": [4, 5, 0], "ttfts": [0.1, 0.2, 0.0],
"itls": [[0.01, 0.01, 0.01], [0.01, 0.01, 0.01, 0.01], []], "start_times": [100.0, 100.5, 101], "errors": ["", "", "timeout"],
"mean_ttft_ms": 150.0})";

TEST_F(LogKinds, BenchServeIsALogOfItsRequests) {
  write("bench.json", kBench);
  const RealLog log = read_real_log("bench.json");
  ASSERT_EQ(log.requests.size(), 2U);
  EXPECT_TRUE(log.is_of_client);
  EXPECT_TRUE(log.has_clock);
  EXPECT_EQ(std::tuple(log.note, log.requests[1].queued_s), std::tuple("1 of the log's 3 requests failed and are left out\n", 100.5));
  EXPECT_NEAR(log.requests[1].ttft_ms(), 200, 1e-9);
  EXPECT_NEAR(log.requests[1].e2e_ms(), 240, 1e-9);
  EXPECT_NEAR(log.requests[1].tpot_ms(), 10, 1e-9);
  std::string timeless = kBench;
  const std::size_t begin = timeless.find("\"start_times\"");
  write("bench.json", timeless.erase(begin, timeless.find(']', begin) + 2 - begin));
  EXPECT_FALSE(read_real_log("bench.json").has_clock);
}

constexpr const char* kAiperf =
    R"({"metadata":{"request_start_ns":1767225600000000000,"benchmark_phase":"warmup"},"metrics":{},"error":null}
{"metadata":{"request_start_ns":1767225601000000001,"benchmark_phase":"profiling","was_cancelled":false},"metrics":{"input_sequence_length":{"value":550,"unit":"tokens"},"time_to_first_token":{"value":255.9,"unit":"ms"},"request_latency":{"value":1.5,"unit":"s"},"output_sequence_length":{"value":11,"unit":"tokens"}},"error":null}
{"metadata":{"request_start_ns":1767225602000000000,"benchmark_phase":"profiling"},"metrics":{},"error":{"code":500}}
)";

TEST_F(LogKinds, AiperfRowsAreRequests) {
  write("profile_export.jsonl", kAiperf);
  const RealLog log = read_real_log("profile_export.jsonl");
  ASSERT_EQ(log.requests.size(), 1U);
  EXPECT_NEAR(log.requests[0].queued_s, 1.000000001, 1e-12);
  EXPECT_NEAR(log.requests[0].ttft_ms(), 255.9, 1e-6);
  EXPECT_NEAR(log.requests[0].e2e_ms(), 1500, 1e-6);
  EXPECT_EQ(log.requests[0].output_tokens, 11);
  EXPECT_EQ(log.note, "1 of the log's 3 requests are of its warm-up and are left out\n1 of the log's 3 requests failed and are left out\n");
}

TEST_F(LogKinds, WhatCannotBeComparedIsSaid) {
  const std::string one_line = R"({"ttfts": [0.1], "itls": [[0.1]], "output_lens": [2]})";
  const std::string engine = R"({"output_toks": 2, "arrival_time": 1, "queued_ts": 1, "first_token_ts": 2, "last_token_ts": 3})";
  const std::pair<std::string, std::string> cases[] = {
      {R"({"ttfts": [0.1, 0.2], "itls": [[0.1]], "output_lens": [2, 2]})", "'itls' has 1 entries, 'ttfts' 2"},
      {R"({"ttfts": [-0.1], "itls": [[0.1]], "output_lens": [2]})", "'ttfts', entry 1, is no number >= 0: -0.1"},
      {R"({"ttfts": [0.1], "itls": [[0.1]], "output_lens": [0]})", "has no requests that completed"},
      {one_line + "\n" + one_line, "holds several benchmark results, one per line; leave the one to compare with"},
      {kAiperf + engine, "not a row of AIPerf, as those above: it has no 'metadata' and 'metrics'"},
      {engine + "\n" + one_line, ":2: missing key 'arrival_time'"},
      {R"({"metadata":{"request_start_ns":5},"metrics":{"request_latency":{"value":5,"unit":"ms"}}})",
       "has no metric 'time_to_first_token'; AIPerf records it with --streaming"},
  };
  for (const auto& [text, expected] : cases) {
    write("log", text);
    const std::string error = error_of([] { read_real_log("log"); });
    EXPECT_EQ(error.substr(error.size() - std::min(error.size(), expected.size())), expected) << text;
    EXPECT_TRUE(error.starts_with("log:")) << error;
  }
}

// A client's TTFT begins when it sends the request: that is the simulation's arrival.
TEST_F(LogKinds, ValidateComparesAClientWithArrival) {
  call_ok({"run", "small.yaml", "--out", "out"});
  const CsvTable requests = read_csv("out/requests.csv"), summary = read_csv("out/summary.csv");
  const auto ns_of = [&](const auto& row, const char* column) { return std::stod(row[requests.at(column)]); };
  std::string ttfts, itls, tokens;
  for (const auto& row : requests.rows) {
    const std::string comma = ttfts.empty() ? "" : ",";
    ttfts += comma + fmt::format("{:.9f}", (ns_of(row, "first_token_ns") - ns_of(row, "arrival_ns")) * 1e-9);
    itls += comma + fmt::format("[{:.9f}]", (ns_of(row, "last_token_ns") - ns_of(row, "first_token_ns")) * 1e-9);
    tokens += comma + row[requests.at("output_tokens")];
  }
  write("bench.json", "{\"ttfts\": [" + ttfts + "], \"itls\": [" + itls + "], \"output_lens\": [" + tokens + "]}");
  ResultsFolder(fs::path("out")).replace_texts({{"throughput.csv", "of another log\n"}});
  call_ok({"validate", "--requests", "bench.json", "--against", "out"});
  const CsvTable validation = read_csv("out/validation.csv");
  for (const auto& row : validation.rows) EXPECT_LT(std::abs(std::stod(row[validation.at("diff_frac")])), 1e-5) << row[0] << row[1];
  EXPECT_NEAR(number(validation, "simulated"), number(summary, "ttft_mean_ms"), 1e-3);
  EXPECT_FALSE(fs::exists("out/throughput.csv")) << "the log has no start times";
}

TEST_F(LogKinds, LfsPointersAreNamedByEveryReader) {
  call_ok({"run", "small.yaml", "--out", "out"});
  for (const char* file : {"pointer", "pointer.yaml", "model/config.json", "profile/tp1/ops.yaml", "profile/meta.yaml", "table/mlp.csv",
                           "broken/requests.csv", "broken/summary.csv"})
    write(file, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
  const std::vector<std::string> calls[] = {
      {"trace", "inspect", "pointer"},
      {"run", "pointer.yaml"},
      {"run", "small.yaml", "--out", "o", "--set", "hardware=pointer.yaml"},
      {"run", "small.yaml", "--out", "o", "--set", "model=pointer.yaml"},
      {"run", "small.yaml", "--out", "o", "--set", "model=model"},
      {"run", "small.yaml", "--out", "o", "--set", "trace={file: pointer}"},
      {"run", "small.yaml", "--out", "o", "--set", "profile={kvlab: {path: profile}}"},
      {"profile", "lint", "table", "--model", "llama-3.1-8b", "--hardware", "h100"},
      {"validate", "--requests", "pointer", "--against", "out"},
      {"compare", "out", "broken"},
  };
  for (const auto& args : calls)
    EXPECT_THAT(error_of_call(args), HasSubstr("is a Git LFS pointer, not the file that it stands for; 'git lfs pull' fetches that"))
        << args[0] << " " << args.back();
}

TEST_F(LogKinds, PipesAreRefusedWithoutWaiting) {
  call_ok({"run", "small.yaml", "--out", "out"});
  ASSERT_EQ(::mkfifo("pipe", 0600), 0);
  const auto error = [](const std::string& set) { return call({"run", "small.yaml", "--out", "o", "--set", set}).err; };
  EXPECT_THAT(error("trace={file: pipe}"), HasSubstr("'pipe' is a pipe, and a run reads it more than once: save it to a file"));
  for (const char* set : {"validate={requests: pipe}", "trace.generate.prompt_tokens={trace: {file: pipe}}"})
    EXPECT_THAT(error(set), HasSubstr("'pipe' is a pipe"));
  EXPECT_THAT(call({"trace", "inspect", "pipe"}).err, HasSubstr("pipe: is a pipe; a trace file is expected: save it to one"));
  EXPECT_THAT(call({"validate", "--requests", "pipe", "--against", "out"}).err, HasSubstr("pipe: is a pipe; a file is expected"));
}

TEST_F(LogKinds, AWarmUpThatTakesAllRequestsIsSaid) {
  const Called called = call_ok({"run", "small.yaml", "--out", "o", "--set", "warmup_ms=100000000"});
  const char* const note = "all 60 requests arrive during the warm-up, so none is counted; shorten 'warmup_ms'";
  EXPECT_THAT(called.out, HasSubstr("note (run " + run_id("o") + "): " + note));
  EXPECT_THAT(read("o/manifest.json"), HasSubstr(note));
}

TEST_F(LogKinds, ManyPreemptionsAreSaid) {
  const std::vector<std::string> overload = {"run",   "small.yaml",
                                             "--out", "o",
                                             "--set", "trace.generate.arrival.poisson.rate_per_s=2000",
                                             "--set", "trace.generate.output_tokens={fixed: {value: 1000}}",
                                             "--set", "memory.num_blocks=100"};
  EXPECT_THAT(call_ok(overload).out, Not(HasSubstr("preemptions per request")));
  std::vector<std::string> thrashing = overload;
  thrashing[3] = "thrash";
  thrashing.insert(thrashing.end(), {"--set", "order={mlfq: {starvation_ms: 10, scan_steps: 1}}"});
  EXPECT_THAT(call_ok(thrashing).out, ::testing::ContainsRegex("[0-9]+ preemptions per request; [0-9]+ % of them compute their KV again"));
}

// Labels are text of the user's: a line end, a quote, a comma, and what a spreadsheet would compute.
TEST_F(LogKinds, LabelsOfAnyTextStayInTheirField) {
  const std::vector<std::string> names = {"a\nb", "=1+1", "-x", "say \"a\", b", "@c", "+5"};
  std::string list;
  for (const std::string& name : names) {
    write(name, "arrival_ns,prompt_tokens,output_tokens\n0,20,3\n");
    std::string quoted;
    for (const char c : name) quoted += c == '\n' ? "\\n" : c == '"' ? "\\\"" : std::string(1, c);
    list += (list.empty() ? "\"" : ", \"") + quoted + "\"";
  }
  const CsvTable summary = summary_after({"small.yaml", "--out", "o", "--set", "trace={file: [" + list + "]}"});
  EXPECT_EQ(column(summary, "trace.file"), (std::vector<std::string>{"a b", "=1+1", "-x", "say \"a\", b", "@c", "+5"}));
  EXPECT_THAT(read("o/summary.csv"), has_all({",a b,", ",'=1+1,", ",'-x,", ",\"say \"\"a\"\", b\",", ",'@c,", ",+5,"}));
}

TEST_F(LogKinds, AnSloOfTheWholeAnswerAlone) {
  const CsvTable all = summary_after({"small.yaml", "--out", "all", "--set", "slo={e2e_ms: 1000000}"});
  EXPECT_EQ(number(all, "slo_attainment_frac"), 1);
  const std::string of_median = fmt::format("slo={{e2e_ms: {}}}", number(all, "e2e_p50_ms"));
  EXPECT_NEAR(number(summary_after({"small.yaml", "--out", "half", "--set", of_median}), "slo_attainment_frac"), 0.5, 0.03);
}

}  // namespace
}  // namespace kvlab
