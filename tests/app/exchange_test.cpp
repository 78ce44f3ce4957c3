// Results in and out of other tools' formats. Inputs are written by hand from each format's definition.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/csv.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"
#include "traces/logs/real_log.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;
using Exchange = AppTest;
using Json = nlohmann::json;
using ::testing::HasSubstr;

const LogStatistic* statistic_in(const RequestLog& log, const std::string& metric, const std::string& statistic) {
  for (const LogStatistic& s : log.statistics)
    if (s.metric == metric && s.statistic == statistic) return &s;
  return nullptr;
}

double ms_of(const RequestLog& log, const std::string& metric, const std::string& statistic) {
  const LogStatistic* const s = statistic_in(log, metric, statistic);
  return s == nullptr ? std::nan("") : s->value_ms;
}

TEST_F(Exchange, BenchTotalsAreStatistics) {
  write("bench.json", R"({"completed": 8, "failed": 2, "request_throughput": 1.5, "mean_ttft_ms": 150.0, "median_ttft_ms": 120.5,
    "std_ttft_ms": 20, "p99_ttft_ms": 400, "mean_itl_ms": 9.5, "mean_e2el_ms": 900, "p99_9_ttft_ms": 1, "mean_ttft": 3})");
  const RequestLog log = read_real_log("bench.json");
  EXPECT_TRUE(log.requests.empty());
  EXPECT_EQ(log.num_completed, 8);
  EXPECT_EQ(log.statistics.size(), 6U);
  EXPECT_EQ(ms_of(log, "ttft", "p50"), 120.5);
  EXPECT_EQ(ms_of(log, "e2e", "mean"), 900);
  EXPECT_EQ(ms_of(log, "itl", "mean"), 9.5);
  EXPECT_THAT(log.note, HasSubstr("2 of the log's 10 requests failed and are left out\n"));
  EXPECT_THAT(log.note, HasSubstr("--save-detailed (vllm bench serve)"));
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
  const RequestLog log = read_real_log("report.json");
  EXPECT_EQ(log.num_completed, 5);
  EXPECT_NEAR(ms_of(log, "e2e", "mean"), 1500, 1e-9);
  EXPECT_NEAR(ms_of(log, "e2e", "p50"), 1250, 1e-9);
  EXPECT_EQ(statistic_in(log, "e2e", "count"), nullptr);
  EXPECT_NEAR(ms_of(log, "tpot", "mean"), 12.5, 1e-9) << "AIPerf's inter-token latency is a mean per request";
  EXPECT_EQ(statistic_in(log, "ttft", "max"), nullptr);
  EXPECT_THAT(log.note, HasSubstr("1 of the log's 6 requests failed"));
  write("report.json", R"({"request_latency": {"unit": "hours", "avg": 1}})");
  EXPECT_THAT(error_of([] { read_real_log("report.json"); }), HasSubstr("'request_latency', 'avg', is in \"hours\"; known: s, ms, us, ns"));
}

// The places where the formats name the model that was served.
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
  const RequestLog log = read_real_log("benchmarks.json");
  ASSERT_EQ(log.requests.size(), 2U);
  EXPECT_TRUE(log.has_clock);
  EXPECT_NEAR(log.requests[0].ttft_ms(), 250, 1e-3);
  EXPECT_NEAR(log.requests[0].e2e_ms(), 1750, 1e-3) << "to the last token, not to the end of the connection";
  EXPECT_NEAR(log.requests[0].tpot_ms(), 500, 1e-3);
  EXPECT_NEAR(log.requests[1].e2e_ms(), 500, 1e-3);
  EXPECT_EQ(
      log.note,
      "1 of the log's 6 requests failed and are left out\n2 of the log's 6 requests were cut off and are left out\nit has rows of 2 of "
      "its 3 completed requests\n");
}

TEST_F(Exchange, GuideLlmWithoutRowsHasDistributions) {
  Json root = Json::parse(kGuide);
  root["benchmarks"][0]["requests"] = {{"successful", nullptr}};
  root["benchmarks"][0]["metrics"]["request_latency"]["successful"] = {
      {"mean", 2.0}, {"std_dev", 0.5}, {"min", 1.0}, {"max", 3.0}, {"percentiles", {{"p50", 1.9}, {"p99", 2.9}}}};
  root["benchmarks"][0]["metrics"]["inter_token_latency_ms"]["successful"] = {{"mean", 20.0}, {"percentiles", {{"p50", 19.0}}}};
  write("benchmarks.json", root.dump());
  const RequestLog log = read_real_log("benchmarks.json");
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

TEST_F(Exchange, HistogramsBoundQuantiles) {
  write("metrics.txt", kMetrics);
  const RequestLog log = read_real_log("metrics.txt");
  EXPECT_EQ(log.model, "m");
  EXPECT_NEAR(ms_of(log, "ttft", "mean"), 300, 1e-9) << "sum and count are exact";
  const LogStatistic* const p50 = statistic_in(log, "ttft", "p50");
  ASSERT_NE(p50, nullptr);
  EXPECT_NEAR(p50->bounds_ms->first, 100, 1e-9);
  EXPECT_NEAR(p50->bounds_ms->second, 250, 1e-9);
  EXPECT_NEAR(p50->value_ms, 250, 1e-9) << "the fifth of ten: the end of the bucket that holds ranks 2 to 5";
  const LogStatistic* const p90 = statistic_in(log, "ttft", "p90");
  EXPECT_NEAR(p90->value_ms, 500, 1e-9);
  const LogStatistic* const p95 = statistic_in(log, "ttft", "p95");
  EXPECT_TRUE(std::isnan(p95->value_ms)) << "the last bucket has no upper limit";
  EXPECT_NEAR(p95->bounds_ms->first, 500, 1e-9);
  EXPECT_TRUE(std::isinf(p95->bounds_ms->second));
  write("metrics.txt", std::string(kMetrics) + "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"other\"} 5.0\n");
  EXPECT_THAT(error_of([] { read_real_log("metrics.txt"); }), HasSubstr("metrics.txt:16: metrics of another model than 'm': 'other'"));
  write("metrics.txt", "# TYPE x gauge\nvllm:num_requests_running{engine=\"0\"} 3\n");
  EXPECT_THAT(error_of([] { read_real_log("metrics.txt"); }), HasSubstr("have no observations"));
}

class ExchangeRun : public AppTest {
 protected:
  void SetUp() override {
    AppTest::SetUp();
    write("small.yaml", std::string(kSmall) + "scheduler: vllm_v1\n");
    ASSERT_EQ(call({"run", "small.yaml", "--out", "out", "--quiet"}).status, 0);
    summary_ = read_csv("out/summary.csv");
  }
  double summary(const std::string& column) const { return std::stod(summary_.rows[0][summary_.at(column)]); }
  static void write_export(const std::string& format) {
    const Called called = call({"export", "out", "--format", format});
    ASSERT_EQ(called.status, 0) << called.err;
  }
  // Every comparison of a validation with the run's own export.
  static void expect_equal(const std::string& file, double most) {
    const Called called = call({"validate", "--requests", file, "--against", "out"});
    ASSERT_EQ(called.status, 0) << called.err;
    const CsvTable table = read_csv("out/validation.csv");
    ASSERT_GE(table.rows.size(), 10U) << file;
    for (const auto& row : table.rows) EXPECT_LT(std::abs(std::stod(row[table.at("diff_frac")])), most) << file << row[0] << row[1];
  }
  CsvTable summary_;
};

TEST_F(ExchangeRun, ExportsReadBackAsTheRunItself) {
  write_export("aiperf");
  expect_equal("out/export/aiperf/profile_export.jsonl", 1e-6);
  expect_equal("out/export/aiperf/profile_export_aiperf.json", 1e-6);
  write_export("vllm_bench");
  expect_equal("out/export/vllm_bench/vllm_bench.json", 1e-6);
}

// Llama-3.1-8B is simulated. Ids and paths are compared through the table of Hugging Face ids; a name that is in none is no alarm.
TEST_F(ExchangeRun, RemarksOnTheModelOfTheLog) {
  const auto told = [](const std::string& model) {
    write("bench.json",
          R"({"completed": 60, "request_throughput": 1.5, "mean_ttft_ms": 50.0, "mean_e2el_ms": 900, "model_id": ")" + model + "\"}");
    const Called called = call({"validate", "--requests", "bench.json", "--against", "out"});
    EXPECT_EQ(called.status, 0) << called.err;
    const std::size_t at = called.out.find("the log is of model");
    return at == std::string::npos ? "" : called.out.substr(at, called.out.find('\n', at) - at);
  };
  for (const char* same : {"", "llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "/data/models/Llama-3.1-8B",
                           "someone/llama-3.1-8b-instruct", "/cache/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f2"})
    EXPECT_EQ(told(same), "") << same;
  EXPECT_EQ(told("Qwen/Qwen3-8B"),
            "the log is of model Qwen/Qwen3-8B, and llama-3.1-8b is simulated: part of the difference comes from the models");
  EXPECT_EQ(told("acme/Secret-8B"),
            "the log is of model acme/Secret-8B, and llama-3.1-8b is simulated: it cannot be told whether they are the same, since "
            "acme/Secret-8B is in none of profiles/hugging_face.yaml and profiles/models");
}

TEST_F(ExchangeRun, AiperfFilesHaveItsFields) {
  write_export("aiperf");
  const Json report = Json::parse(read("out/export/aiperf/profile_export_aiperf.json"));
  EXPECT_EQ(report["schema_version"], "1.4");
  EXPECT_NEAR(report["time_to_first_token"]["avg"].get<double>(), summary("ttft_mean_ms"), 1e-5);
  EXPECT_NEAR(report["time_to_first_token"]["p99"].get<double>(), summary("ttft_p99_ms"), 1e-5);
  EXPECT_EQ(report["time_to_first_token"]["count"], 60);
  EXPECT_EQ(report["request_throughput"]["unit"], "requests/sec");
  EXPECT_NEAR(report["request_throughput"]["avg"].get<double>(), summary("requests_per_s"), 1e-6);
  EXPECT_FALSE(report.contains("error_request_count"));
  const std::string lines = read("out/export/aiperf/profile_export.jsonl");
  const Json row = Json::parse(lines.substr(0, lines.find('\n')));
  EXPECT_EQ(row["metadata"]["benchmark_phase"], "profiling");
  EXPECT_TRUE(row["metadata"]["request_start_ns"].is_number_integer());
  EXPECT_EQ(row["metrics"]["input_sequence_length"]["value"], 300);
  EXPECT_TRUE(row["error"].is_null());
}

TEST_F(ExchangeRun, VllmBenchInventsNoGaps) {
  EXPECT_THAT(call({"export", "out", "--format", "vllm_bench"}).out,
              HasSubstr("no 'itls', since the run has no trace.json, which 'trace: {perfetto: true}' writes"));
  const Json json = Json::parse(read("out/export/vllm_bench/vllm_bench.json"));
  EXPECT_EQ(json["completed"], 60);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["ttfts"].size(), 60U);
  EXPECT_FALSE(json.contains("itls"));
  EXPECT_FALSE(json.contains("std_itl_ms"));
  EXPECT_NEAR(json["mean_itl_ms"].get<double>(), summary("itl_mean_ms"), 1e-9);
  EXPECT_NEAR(json["mean_e2el_ms"].get<double>(), summary("e2e_mean_ms"), 1e-5);
  EXPECT_EQ(json["total_input_tokens"], 60 * 300);
}

TEST_F(ExchangeRun, OpenMetricsBracketTheRun) {
  write_export("openmetrics");
  const std::string text = read("out/export/openmetrics/metrics.txt");
  EXPECT_TRUE(text.ends_with("# EOF\n"));
  for (const char* name : {"vllm:num_requests_running{engine=\"0\"", "vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{",
                           "vllm:prefix_cache_queries_total{", "vllm:prefix_cache_hits_total{", "vllm:num_preemptions_total{",
                           "vllm:time_to_first_token_seconds_bucket{"})
    EXPECT_THAT(text, HasSubstr(name));
  const Called called = call({"validate", "--requests", "out/export/openmetrics/metrics.txt", "--against", "out"});
  ASSERT_EQ(called.status, 0) << called.err;
  const CsvTable table = read_csv("out/validation.csv");
  ASSERT_EQ(table.rows.size(), 15U);  // of ttft, tpot and e2e
  std::size_t exact = 0;
  for (const auto& row : table.rows) {
    const double simulated = std::stod(row[table.at("simulated")]);
    if (row[1] == "mean") {
      EXPECT_NEAR(simulated, std::stod(row[table.at("real")]), 1e-3) << row[0];
      ++exact;
      continue;
    }
    // None in the bucket: a histogram counts ranks and results interpolate between them, so at most a rank beyond it.
    const std::string& diff = row[table.at("diff_frac")];
    EXPECT_LT(diff.empty() ? 0.0 : std::abs(std::stod(diff)), 0.2) << row[0] << row[1];
  }
  EXPECT_EQ(exact, 3U);
}

TEST_F(ExchangeRun, InferenceXIsInSecondsAndPerGpu) {
  const Called called = call({"run", "small.yaml", "--out", "two", "--quiet", "--set", "parallel={tp: 2}"});
  ASSERT_EQ(called.status, 0) << called.err;
  ASSERT_EQ(call({"export", "two", "--format", "inferencex", "--out", "x"}).status, 0);
  const CsvTable two = read_csv("two/summary.csv");
  const auto value = [&](const char* column) { return std::stod(two.rows[0][two.at(column)]); };
  const Json row = Json::parse(read("x/inferencex.json"))[0];
  EXPECT_EQ(row["tp"], 2);
  EXPECT_NEAR(row["output_tput_per_gpu"].get<double>(), value("output_tokens_per_s") / 2, 1e-6);
  EXPECT_NEAR(row["tput_per_gpu"].get<double>(), (value("output_tokens_per_s") + value("prompt_tokens_per_s")) / 2, 1e-6);
  EXPECT_NEAR(row["mean_ttft"].get<double>(), 1e-3 * value("ttft_mean_ms"), 1e-8);
  EXPECT_NEAR(row["median_intvty"].get<double>(), 1e3 / value("tpot_p50_ms"), 1e-4);
  EXPECT_EQ(row["isl"], 300);
  EXPECT_FALSE(row.contains("precision")) << "no file says it";
  EXPECT_FALSE(row.contains("conc")) << "an open loop has none";
  EXPECT_THAT(call({"export", "two", "--format", "inferencex", "--out", "x"}).err, HasSubstr("x/inferencex.json: is there already"));
}

TEST_F(ExchangeRun, InferenceXHasTheValuesOfASearch) {
  const auto row_of = [](const std::string& search) {
    const Called called = call({"run", "small.yaml", "--out", "found", "--quiet", "--set", "search=" + search});
    EXPECT_EQ(called.status, 0) << called.err;
    EXPECT_EQ(call({"export", "found", "--format", "inferencex"}).status, 0);
    return Json::parse(read("found/export/inferencex/inferencex.json"))[0];
  };
  const auto tokens_per_s = [] {
    const CsvTable found = read_csv("found/summary.csv");
    return std::stod(found.rows[0][found.at("output_tokens_per_s")]);
  };
  // Nothing attains: the run is the one with the most hardware.
  const Json by_tp = row_of("{tp: [1, 2], ttft_max_ms: 0.001}");
  EXPECT_EQ(by_tp["tp"], 2);
  EXPECT_NEAR(by_tp["output_tput_per_gpu"].get<double>(), tokens_per_s() / 2, 1e-6);
  const Json by_replicas = row_of("{replicas: [1, 3], ttft_max_ms: 0.001}");
  EXPECT_EQ(by_replicas["tp"], 1);
  EXPECT_NEAR(by_replicas["output_tput_per_gpu"].get<double>(), tokens_per_s() / 3, 1e-6);
  EXPECT_EQ(row_of("{concurrency: [2, 4], ttft_max_ms: 1000000}")["conc"], 4);
}

TEST_F(ExchangeRun, MlflowLayout) {
  ASSERT_EQ(call({"run", "small.yaml", "--out", "out", "--quiet", "--set", "scheduler=[vllm_v1, sarathi]"}).status, 0);
  const Called called = call({"export", "out", "--format", "mlflow", "--out", "mlruns"});
  ASSERT_EQ(called.status, 0) << called.err;
  std::size_t num_runs = 0;
  for (const auto& experiment : fs::directory_iterator("mlruns")) {
    EXPECT_THAT(read(experiment.path() / "meta.yaml"), HasSubstr("name: 'small'"));
    for (const auto& run : fs::directory_iterator(experiment.path())) {
      if (!run.is_directory()) continue;
      ++num_runs;
      EXPECT_THAT(read(run.path() / "meta.yaml"), HasSubstr("status: 3\n"));
      EXPECT_THAT(read(run.path() / "metrics/ttft_mean_ms"), HasSubstr(" 0\n"));
      EXPECT_EQ(read(run.path() / "params/model"), "llama-3.1-8b");
      EXPECT_TRUE(fs::exists(run.path() / "artifacts/requests.csv"));
      EXPECT_FALSE(fs::exists(run.path() / "metrics/search_rate_per_s"));
      EXPECT_EQ(fs::exists(run.path() / "metrics/energy_j"), !summary_.rows[0][summary_.at("energy_j")].empty());
    }
  }
  EXPECT_EQ(num_runs, 2U);
}

TEST_F(ExchangeRun, SweepsHaveAFolderPerRunAndMistakesAreNamed) {
  ASSERT_EQ(call({"run", "small.yaml", "--out", "out", "--quiet", "--set", "scheduler=[vllm_v1, sarathi]"}).status, 0);
  const std::string first = run_id("out", 0), second = run_id("out", 1);
  ASSERT_EQ(call({"export", "out", "--format", "aiperf"}).status, 0);
  EXPECT_TRUE(fs::exists("out/export/aiperf/" + first + "/profile_export.jsonl"));
  EXPECT_TRUE(fs::exists("out/export/aiperf/" + second + "/profile_export.jsonl"));
  ASSERT_EQ(call({"export", "out", "--format", "vllm_bench", "--run", second, "--out", "x"}).status, 0);
  EXPECT_EQ(Json::parse(read("x/vllm_bench.json"))["label"], second);
  ASSERT_EQ(call({"export", "out", "--format", "vllm_bench", "--run", first, "--out", "y"}).status, 0);
  EXPECT_EQ(Json::parse(read("y/vllm_bench.json"))["label"], first) << "the runs after it are not wanted";
  EXPECT_THAT(call({"export", "out", "--format", "aiperfx"}).err, HasSubstr("unknown export format 'aiperfx'; did you mean 'aiperf'?"));
  EXPECT_THAT(call({"export", "out", "--format", "aiperf", "--run", "nope"}).err,
              HasSubstr("has no run 'nope' in its newest sweep; known: "));
  EXPECT_THAT(call({"export", "nowhere", "--format", "aiperf"}).err, HasSubstr("nowhere: no such folder; kvlab run makes one"));
  EXPECT_THAT(call({"list", "export_formats"}).out, HasSubstr("openmetrics"));
  EXPECT_THAT(call({"list", "log_formats"}).out, HasSubstr("guidellm"));
}

// Warm-up requests are marked or left out, and what did not complete is counted.
TEST_F(ExchangeRun, WarmUpAndUnservedRequestsAreApart) {
  ASSERT_EQ(call({"run", "small.yaml", "--out", "cut", "--quiet", "--set", "warmup_ms=1000", "--set", "stop={after_s: 5}"}).status, 0);
  ASSERT_EQ(call({"export", "cut", "--format", "aiperf", "--out", "a"}).status, 0);
  ASSERT_EQ(call({"export", "cut", "--format", "vllm_bench", "--out", "v"}).status, 0);
  const CsvTable cut = read_csv("cut/summary.csv");
  const Json bench = Json::parse(read("v/vllm_bench.json"));
  EXPECT_EQ(std::to_string(bench["completed"].get<int>()), cut.rows[0][cut.at("completed")]);
  EXPECT_EQ(std::to_string(bench["num_prompts"].get<int>()), cut.rows[0][cut.at("requests")]);
  EXPECT_GT(bench["failed"].get<int>(), 0);
  EXPECT_NEAR(bench["mean_ttft_ms"].get<double>(), std::stod(cut.rows[0][cut.at("ttft_mean_ms")]), 0.2);
  const RequestLog log = read_real_log("a/profile_export.jsonl");
  EXPECT_THAT(log.note, HasSubstr("are of its warm-up"));
  EXPECT_THAT(log.note, HasSubstr("were cancelled"));
  EXPECT_EQ(std::to_string(log.requests.size()), cut.rows[0][cut.at("completed")]);
}

}  // namespace
}  // namespace kvlab
