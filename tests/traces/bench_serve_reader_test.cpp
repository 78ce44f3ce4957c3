// Results of `vllm bench serve` as traces: written by hand from the keys that it saves.
#include "tests/traces/trace_test_files.h"

namespace kvlab {
namespace {

// Requests 0 and 3 come in another order than their entries; 1 has an error, 2 no output.
constexpr const char* kBenchDetailed =
    R"({"date": "20260102-030405", "backend": "vllm", "num_prompts": 4, "request_rate": "inf", "max_concurrency": null, "duration": 3.5,
"completed": 2, "failed": 2, "request_throughput": 0.57, "input_lens": [100, 50, 7, 30], "output_lens": [20, 3, 0, 4],
"ttfts": [0.1, 0.0, 0.0, 0.2], "itls": [[], [], [], []], "start_times": [1000.75, 0.0, 1000.25, 1000.5],
"generated_texts": ["a", "", "", "b"], "errors": ["", "Connection reset", "", ""], "mean_ttft_ms": 150.0})";

std::string bench_with(const std::string& what, const std::string& by) {
  std::string text = kBenchDetailed;
  return text.replace(text.find(what), what.size(), by);
}

TEST(BenchServeReader, StartsCountFromTheEarliestThatCompleted) {
  const InMemoryTrace t = read_all(kBenchDetailed);
  ASSERT_EQ(t.size(), 2U);
  EXPECT_EQ(std::tuple(t.at(0).arrival, t.at(0).prompt_tokens, t.at(0).output_tokens), std::tuple(kStart, 30, 4));
  EXPECT_EQ(ns(t.at(1).arrival), 250'000'000);
  EXPECT_EQ(std::tuple(t.at(1).prompt_tokens, t.at(1).output_tokens, t.at(1).hashes.empty()), std::tuple(100, 20, true));
  EXPECT_EQ(std::tuple(t.skipped(), t.remark()), std::tuple("2 failed requests left out", ""));
}

TEST(BenchServeReader, FilesWithoutStartsTakeOtherArrivals) {
  const std::string text = bench_with("\"start_times\"", "\"other_times\"");
  EXPECT_EQ(error_of([&] { read_all(text); }),
            "f: has no 'start_times', so its arrivals are unknown; give others: 'arrival: {poisson: {rate_per_s: 2}}'");
  const InMemoryTrace t = trace_in_file("bench.json", text, "arrival: {constant: {rate_per_s: 2}}");
  ASSERT_EQ(t.size(), 2U);
  EXPECT_EQ(t.at(0).prompt_tokens, 100) << "in order of the entries";
  EXPECT_EQ(to_s(t.at(1).arrival), 0.5);
}

TEST(BenchServeReader, ALimitOfRequestsInProgressIsRemarkedOn) {
  const std::string limited = bench_with("\"max_concurrency\": null", "\"max_concurrency\": 1");
  EXPECT_NE(read_all(limited).remark().find("'arrival: {closed_loop: {concurrency: 1}}'"), std::string::npos);
  EXPECT_EQ(read_all(bench_with("\"max_concurrency\": null", "\"max_concurrency\": 2")).remark(), "") << "the limit is not reached";
  EXPECT_EQ(read_all(limited, without_arrivals()).remark(), "");
}

TEST(BenchServeReader, InfinityAsPythonWritesItIsNoNumber) {
  EXPECT_EQ(read_all(bench_with("\"inf\"", "Infinity")).size(), 2U) << "SGLang's rate of a benchmark that sends all at once";
  EXPECT_EQ(read_all(bench_with("[\"a\"", R"(["\" NaN, -Infinity\\")")).size(), 2U) << "in a text after an escaped quote";
  EXPECT_EQ(error_of([] { read_all(bench_with("1000.5]", "NaN]")); }), "f: 'start_times', entry 4, is no number >= 0: null");
}

TEST(BenchServeReader, ValuesThatCannotBeStopWithTheirEntry) {
  EXPECT_EQ(error_of([] { read_all(bench_with("100, 50", "0, 50")); }),
            "f: 'input_lens', entry 1, is 0, but a request has at least 1 token: mend or remove its entries");
  EXPECT_EQ(error_of([] { read_all(bench_with("20, 3, 0, 4", "20, 3, 0, 4.5")); }), "f: 'output_lens', entry 4, is no count: 4.5");
  EXPECT_EQ(error_of([] { read_all(bench_with("1000.5]", "1000.5, 2]")); }), "f: 'start_times' has 5 entries, 'input_lens' 4");
  EXPECT_EQ(error_of([] { read_all(bench_with("1000.5]", "-1]")); }), "f: 'start_times', entry 4, is no number >= 0: -1");
  EXPECT_EQ(error_of([] { read_all(bench_with("1000.5]", "1e12]")); }),
            "f: 'start_times' span 1e+12 s, and no run lasts longer than 9.2e6 s (106 days): are they in seconds?");
}

TEST(TraceFormats, ResultsOfOtherToolsAreNamedAsSuch) {
  const auto refused = [](const std::string& tool) {
    return "f: is a result of a tool (" + tool +
           "), and no trace; 'kvlab validate --requests f --against results/NAME' compares it with a run";
  };
  EXPECT_EQ(error_of([] { read_all("{\n  \"metadata\": {},\n  \"benchmarks\": []\n}\n"); }), refused("GuideLLM's benchmarks.json"));
  EXPECT_EQ(error_of([] {
              read_all(R"({"metadata":{"request_start_ns":1},"metrics":{"time_to_first_token":{"value":2,"unit":"ms"}},"error":null})"
                       "\n\n");
            }),
            refused("AIPerf's profile_export.jsonl: an object per request"));
  EXPECT_EQ(error_of([] { read_all("# HELP vllm:x y\n# TYPE vllm:x counter\nvllm:x 1\n"); }),
            refused("vLLM's /metrics: histograms in the Prometheus text format"));
}

}  // namespace
}  // namespace kvlab
