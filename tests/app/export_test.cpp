// Results in the formats of other tools, and read back from them.
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/app/app_fixture.h"
#include "traces/logs/real_log.h"

namespace kvlab {
namespace {

using Json = nlohmann::json;

struct Export : SmallTest {
  Export() {
    call_ok({"run", "small.yaml", "--out", "out", "--quiet"});
    summary_ = read_csv("out/summary.csv");
  }
  double summary(const std::string& column) const { return number(summary_, column); }
  static void write_export(const std::string& format) { call_ok({"export", "out", "--format", format}); }
  // Every comparison of a validation with the run's own export.
  static void expect_equal(const std::string& file, double most) {
    call_ok({"validate", "--requests", file, "--against", "out"});
    const CsvTable table = read_csv("out/validation.csv");
    ASSERT_GE(table.rows.size(), 10U) << file;
    for (const auto& row : table.rows) EXPECT_LT(std::abs(std::stod(row[table.at("diff_frac")])), most) << file << row[0] << row[1];
  }
  CsvTable summary_;
};

TEST_F(Export, ExportsReadBackAsTheRunItself) {
  write_export("aiperf");
  expect_equal("out/export/aiperf/profile_export.jsonl", 1e-6);
  expect_equal("out/export/aiperf/profile_export_aiperf.json", 1e-6);
  write_export("vllm_bench");
  expect_equal("out/export/vllm_bench/vllm_bench.json", 1e-6);
}

// Llama-3.1-8B is simulated. Ids and paths are compared through the table of Hugging Face ids; a name that is in none is no alarm.
TEST_F(Export, RemarksOnTheModelOfTheLog) {
  const auto told = [](const std::string& model) {
    write("bench.json",
          R"({"completed": 60, "request_throughput": 1.5, "mean_ttft_ms": 50.0, "mean_e2el_ms": 900, "model_id": ")" + model + "\"}");
    const Called called = call_ok({"validate", "--requests", "bench.json", "--against", "out"});
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

TEST_F(Export, AiperfFilesHaveItsFields) {
  write_export("aiperf");
  const Json report = Json::parse(read("out/export/aiperf/profile_export_aiperf.json"));
  EXPECT_EQ(report["schema_version"], "1.4");
  EXPECT_NEAR(report["time_to_first_token"]["avg"].get<double>(), summary("ttft_mean_ms"), 1e-5);
  EXPECT_NEAR(report["time_to_first_token"]["p99"].get<double>(), summary("ttft_p99_ms"), 1e-5);
  EXPECT_EQ(std::tuple(report["time_to_first_token"]["count"], report["request_throughput"]["unit"]), std::tuple(60, "requests/sec"));
  EXPECT_NEAR(report["request_throughput"]["avg"].get<double>(), summary("requests_per_s"), 1e-6);
  EXPECT_FALSE(report.contains("error_request_count"));
  const std::string lines = read("out/export/aiperf/profile_export.jsonl");
  const Json row = Json::parse(lines.substr(0, lines.find('\n')));
  EXPECT_EQ(row["metadata"]["benchmark_phase"], "profiling");
  EXPECT_TRUE(row["metadata"]["request_start_ns"].is_number_integer());
  EXPECT_EQ(row["metrics"]["input_sequence_length"]["value"], 300);
  EXPECT_TRUE(row["error"].is_null());
}

TEST_F(Export, VllmBenchInventsNoGaps) {
  EXPECT_THAT(call({"export", "out", "--format", "vllm_bench"}).out,
              HasSubstr("no 'itls', since the run has no trace.json, which 'trace: {perfetto: true}' writes"));
  const Json json = Json::parse(read("out/export/vllm_bench/vllm_bench.json"));
  EXPECT_EQ(std::tuple(json["completed"], json["failed"], json["ttfts"].size()), std::tuple(60, 0, 60U));
  EXPECT_FALSE(json.contains("itls") || json.contains("std_itl_ms"));
  EXPECT_NEAR(json["mean_itl_ms"].get<double>(), summary("itl_mean_ms"), 1e-9);
  EXPECT_NEAR(json["mean_e2el_ms"].get<double>(), summary("e2e_mean_ms"), 1e-5);
  EXPECT_EQ(json["total_input_tokens"], 60 * 300);
}

TEST_F(Export, OpenMetricsBracketTheRun) {
  write_export("openmetrics");
  const std::string text = read("out/export/openmetrics/metrics.txt");
  EXPECT_TRUE(text.ends_with("# EOF\n"));
  EXPECT_THAT(text, has_all({"vllm:num_requests_running{engine=\"0\"", "vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{",
                             "vllm:prefix_cache_queries_total{", "vllm:prefix_cache_hits_total{", "vllm:num_preemptions_total{",
                             "vllm:time_to_first_token_seconds_bucket{"}));
  call_ok({"validate", "--requests", "out/export/openmetrics/metrics.txt", "--against", "out"});
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

TEST_F(Export, InferenceXIsInSecondsAndPerGpu) {
  call_ok({"run", "small.yaml", "--out", "two", "--quiet", "--set", "parallel={tp: 2}"});
  call_ok({"export", "two", "--format", "inferencex", "--out", "x"});
  const auto value = [](const char* column) { return number(read_csv("two/summary.csv"), column); };
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

TEST_F(Export, InferenceXHasTheValuesOfASearch) {
  const auto row_of = [](const std::string& search) {
    call_ok({"run", "small.yaml", "--out", "found", "--quiet", "--set", "search=" + search});
    EXPECT_EQ(call({"export", "found", "--format", "inferencex"}).status, 0);
    return Json::parse(read("found/export/inferencex/inferencex.json"))[0];
  };
  const auto tokens_per_s = [] { return number(read_csv("found/summary.csv"), "output_tokens_per_s"); };
  // Nothing attains: the run is the one with the most hardware.
  const Json by_tp = row_of("{tp: [1, 2], ttft_max_ms: 0.001}");
  EXPECT_EQ(by_tp["tp"], 2);
  EXPECT_NEAR(by_tp["output_tput_per_gpu"].get<double>(), tokens_per_s() / 2, 1e-6);
  const Json by_replicas = row_of("{replicas: [1, 3], ttft_max_ms: 0.001}");
  EXPECT_EQ(by_replicas["tp"], 1);
  EXPECT_NEAR(by_replicas["output_tput_per_gpu"].get<double>(), tokens_per_s() / 3, 1e-6);
  EXPECT_EQ(row_of("{concurrency: [2, 4], ttft_max_ms: 1000000}")["conc"], 4);
}

TEST_F(Export, MlflowLayout) {
  call_ok({"run", "small.yaml", "--out", "out", "--quiet", "--set", "scheduler=[vllm_v1, sarathi]"});
  call_ok({"export", "out", "--format", "mlflow", "--out", "mlruns"});
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
      EXPECT_EQ(fs::exists(run.path() / "metrics/energy_j"), !text(summary_, "energy_j").empty());
    }
  }
  EXPECT_EQ(num_runs, 2U);
}

TEST_F(Export, SweepsHaveAFolderPerRunAndMistakesAreNamed) {
  call_ok({"run", "small.yaml", "--out", "out", "--quiet", "--set", "scheduler=[vllm_v1, sarathi]"});
  const std::string first = run_id("out", 0), second = run_id("out", 1);
  call_ok({"export", "out", "--format", "aiperf"});
  for (const std::string& one : {first, second}) EXPECT_TRUE(fs::exists("out/export/aiperf/" + one + "/profile_export.jsonl"));
  for (const std::string& one : {second, first}) {  // of the first the runs after it are not wanted
    call_ok({"export", "out", "--format", "vllm_bench", "--run", one, "--out", one});
    EXPECT_EQ(Json::parse(read(one + "/vllm_bench.json"))["label"], one);
  }
  EXPECT_THAT(call({"export", "out", "--format", "aiperfx"}).err, HasSubstr("unknown export format 'aiperfx'; did you mean 'aiperf'?"));
  EXPECT_THAT(call({"export", "out", "--format", "aiperf", "--run", "nope"}).err,
              HasSubstr("has no run 'nope' in its newest sweep; known: "));
  EXPECT_THAT(call({"export", "nowhere", "--format", "aiperf"}).err, HasSubstr("nowhere: no such folder; kvlab run makes one"));
  EXPECT_THAT(call({"list", "export_formats"}).out, HasSubstr("openmetrics"));
  EXPECT_THAT(call({"list", "log_formats"}).out, HasSubstr("guidellm"));
}

TEST_F(Export, WarmUpAndUnservedRequestsAreApart) {
  call_ok({"run", "small.yaml", "--out", "cut", "--quiet", "--set", "warmup_ms=1000", "--set", "stop={after_s: 5}"});
  call_ok({"export", "cut", "--format", "aiperf", "--out", "a"});
  call_ok({"export", "cut", "--format", "vllm_bench", "--out", "v"});
  const CsvTable cut = read_csv("cut/summary.csv");
  const Json bench = Json::parse(read("v/vllm_bench.json"));
  EXPECT_EQ(std::to_string(bench["completed"].get<int>()), text(cut, "completed"));
  EXPECT_EQ(std::to_string(bench["num_prompts"].get<int>()), text(cut, "requests"));
  EXPECT_GT(bench["failed"].get<int>(), 0);
  EXPECT_NEAR(bench["mean_ttft_ms"].get<double>(), number(cut, "ttft_mean_ms"), 0.2);
  const RealLog log = read_real_log("a/profile_export.jsonl");
  EXPECT_THAT(log.note, has_all({"are of its warm-up", "were cancelled"}));
  EXPECT_EQ(std::to_string(log.requests.size()), text(cut, "completed"));
}

// The instants of a request's tokens, read from the steps in trace.json, and the gaps between them in the format vllm_bench.

using TokenTimesJson = nlohmann::json;

struct TokenTimesTest : SmallTest {
  // Puts `other` in place of the start of the first batch that begins with request 0: `"batch":"0:300@0 ...`.
  static void damage(const fs::path& file, const std::string& other) {
    static constexpr std::string_view kStart = "batch\":\"0:300@0 ";
    std::string text = read(file);
    const auto at = text.find(kStart);
    ASSERT_NE(at, std::string::npos);
    write(file, text.replace(at, kStart.size(), "batch\":\"" + other));
  }
};

// With trace.json the gaps of each request are there: from its first token to its last, and of all together as summary.csv has them.
TEST_F(TokenTimesTest, AreThoseOfTheSteps) {
  const std::vector<std::string> schedulers = {"vllm_v1", "{vllm_v0: {preemption: swap}}", "sarathi", "layered_prefill"};
  for (std::size_t i = 0; i < schedulers.size(); ++i) {
    const std::string name = "traced" + std::to_string(i);
    call_ok({"run", "small.yaml", "--out", name, "--quiet", "--set", "trace.perfetto=true", "--set", "memory.num_blocks=60", "--set",
             "max_model_len=800", "--set", "scheduler=" + schedulers[i]});
    EXPECT_THAT(call({"export", name, "--format", "vllm_bench"}).out, Not(HasSubstr("note:"))) << schedulers[i];
    const TokenTimesJson json = TokenTimesJson::parse(read(name + "/export/vllm_bench/vllm_bench.json"));
    ASSERT_EQ(json["itls"].size(), 60U) << schedulers[i];
    double sum_ms = 0;
    std::size_t count = 0;
    for (std::size_t r = 0; r < 60; ++r) {
      double gaps = 0;
      for (const TokenTimesJson& gap : json["itls"][r]) gaps += gap.get<double>();
      EXPECT_EQ(json["itls"][r].size() + 1, json["output_lens"][r].get<std::size_t>()) << schedulers[i];
      EXPECT_NEAR(json["ttfts"][r].get<double>() + gaps, json["e2els"][r].get<double>(), 1e-9) << schedulers[i];
      sum_ms += 1000 * gaps;
      count += json["itls"][r].size();
    }
    EXPECT_NEAR(sum_ms / static_cast<double>(count), json["mean_itl_ms"].get<double>(), 1e-5) << schedulers[i];
    EXPECT_GT(json["std_itl_ms"].get<double>(), 0);
  }
}

// Neither those of other requests nor those of a batch that is no list of request:tokens@before, each entry with a space after it.
TEST_F(TokenTimesTest, OfADamagedTraceAreNotTaken) {
  call_ok({"run", "small.yaml", "--out", "cut", "--quiet", "--set", "trace.perfetto=true"});
  const fs::path file = run_folder("cut") / "trace.json";
  const std::string whole = read(file);
  damage(file, "99:300@0 ");
  EXPECT_THAT(call({"export", "cut", "--format", "vllm_bench"}).out,
              HasSubstr("no 'itls', since the steps in trace.json do not give all tokens of request 0"));
  EXPECT_FALSE(TokenTimesJson::parse(read("cut/export/vllm_bench/vllm_bench.json")).contains("itls"));
  write(file, "{");
  EXPECT_THAT(call({"export", "cut", "--format", "vllm_bench"}).err, HasSubstr("trace.json: cannot be read: "));
  for (const std::string batch : {"0:x@0 ", "0:@0 ", "0:300@ ", "0:300@x ", "0:3 00@0 ", "0:300x@0 ", "0:-300@0 ", "0:300@-1 ", "0:300 ",
                                  "0@300 ", "0:99999999999999999999@0 ", "0:300@0"}) {
    write(file, whole);
    damage(file, batch);
    EXPECT_THAT(error_of_call({"export", "cut", "--format", "vllm_bench"}),
                HasSubstr("trace.json: a step has a batch that is no list of request:tokens@before: '" + batch))
        << batch;
  }
}

}  // namespace
}  // namespace kvlab
