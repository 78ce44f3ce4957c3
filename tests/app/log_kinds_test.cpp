// Logs and inputs of other tools, as users name them.
#include <fmt/format.h>
#include <sys/stat.h>

#include "app/results/results.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"
#include "traces/logs/real_log.h"

namespace kvlab {
namespace {

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
  for (const auto& args : calls) {
    EXPECT_THAT(error_of_call(args), HasSubstr("is a Git LFS pointer, not the file that it stands for; 'git lfs pull' fetches that"))
        << args[0] << " " << args.back();
  }
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
  call_ok({"run", "small.yaml", "--out", "o", "--set", "trace={file: [" + list + "]}"});
  const CsvTable summary = read_csv("o/summary.csv");
  std::vector<std::string> labels;
  for (const auto& row : summary.rows) labels.push_back(row[summary.at("trace.file")]);
  EXPECT_EQ(labels, (std::vector<std::string>{"a b", "=1+1", "-x", "say \"a\", b", "@c", "+5"}));
  EXPECT_THAT(read("o/summary.csv"), has_all({",a b,", ",'=1+1,", ",'-x,", ",\"say \"\"a\"\", b\",", ",'@c,", ",+5,"}));
}

TEST_F(LogKinds, AnSloOfTheWholeAnswerAlone) {
  call_ok({"run", "small.yaml", "--out", "all", "--set", "slo={e2e_ms: 1000000}"});
  const CsvTable all = read_csv("all/summary.csv");
  EXPECT_EQ(number(all, "slo_attainment_frac"), 1);
  const double median = number(all, "e2e_p50_ms");
  call_ok({"run", "small.yaml", "--out", "half", "--set", fmt::format("slo={{e2e_ms: {}}}", median)});
  EXPECT_NEAR(number(read_csv("half/summary.csv"), "slo_attainment_frac"), 0.5, 0.03);
}

}  // namespace
}  // namespace kvlab
