// Logs of caches and gateways, and ServeGen's distributions: written by hand from the formats' definitions.
#include <cmath>
#include <tuple>

#include "tests/traces/trace_test_files.h"
#include "traces/block_hashes.h"

namespace kvlab {
namespace {

// A row with the id of an earlier one is the same request.
TEST(RepeatedIds, AreDroppedAndCounted) {
  const std::string
      bailian = R"({"chat_id":1,"parent_chat_id":-1,"timestamp":1,"input_length":20,"output_length":3,"hash_ids":[1,7]})",
      lmcache = R"({"timestamp":1711929600.1,"request_id":"a","chunk_size":256,"seq_len":256,"chunk_hashes":["1a"]})",
      mooncake = R"({"timestamp":1,"input_length":20,"output_length":3,"request_id":"a"})",
      delta = R"({"session_id":1,"timestamp":1,"input_length":20,"output_length":3,"request_id":"a","block_size":16,"hash_ids":[1,2]})",
      dynamo = R"({"schema":"dynamo.request.trace.v1","event_type":"request_end","agent_context":{"trajectory_id":"t"},"request":)"
               R"({"request_id":"a","request_received_ms":1777312800000,"output_tokens":3,"replay":)"
               R"({"trace_block_size":64,"input_length":20,"input_sequence_hashes":[1]}}})",
      sharegpt = R"({"id":"a","conversations":[{"from":"human","value":"one two"},{"from":"gpt","value":"three four"}]})";
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {bailian + "\n" + bailian, "{}", "1 rows with the chat_id of an earlier one dropped"},
      {lmcache + "\n" + lmcache, "{}", "1 rows with the request_id of an earlier one dropped"},
      {mooncake + "\n" + mooncake, "{format: mooncake}", "1 rows with the request_id of an earlier one dropped"},
      {delta + "\n" + delta, "{format: mooncake_delta}", "1 rows with the request_id of an earlier one dropped"},
      {dynamo + "\n" + dynamo, "{}", "1 rows with the request_id of an earlier one dropped"},
      {"request_id,arrival_timestamp,prompt_size,token_size\n0,0,5,2\n0,0,5,2\n", "{}",
       "1 rows with the request_id of an earlier one dropped"},
      {"[" + sharegpt + "," + sharegpt + "]", "{}", "1 conversations with the id of an earlier one dropped"},
  };
  for (const auto& [text, own, skipped] : cases) {
    ReaderOptions options;
    options.uses_arrivals = text.find("conversations") == std::string::npos;
    const InMemoryTrace trace = read_all(text, options, own);
    EXPECT_EQ(trace.size(), 1U) << text;
    EXPECT_NE(trace.skipped().find(skipped), std::string::npos) << trace.skipped();
  }
}

TEST(LmCacheReader, FullChunksAreKnownAndTheTailIsNot) {
  const InMemoryTrace t = read_all(
      R"({"timestamp":1711929600.123,"request_id":"req-001","model_name":"m","chunk_size":256,"seq_len":700,"dtypes":["float8_e4m3fn"],"shapes":[[32,256,128]],"chunk_hashes":["0x1a","0x2b"]}
{"timestamp":1711929601.623,"request_id":"req-002","model_name":"m","chunk_size":256,"seq_len":256,"dtypes":[],"shapes":[],"chunk_hashes":["1a"]})",
      {}, "output_tokens: 5");
  ASSERT_EQ(t.size(), 2U);
  EXPECT_EQ(t.at(0).arrival, kStart);
  EXPECT_EQ(ns(t.at(1).arrival), 1'500'000'000);
  EXPECT_EQ(std::tuple(t.at(0).prompt_tokens, t.at(0).output_tokens, t.at(0).hashes[0], t.at(0).hashes[0]),
            std::tuple(700, 5, 0x1aU, t.at(1).hashes[0]));
  EXPECT_EQ(num_block_hashes(t.at(0), 256), 2U);
  EXPECT_EQ(t.remark(), "");
}

TEST(LmCacheReader, NumbersSignsAndLongTextsAreHashesToo) {
  const InMemoryTrace t =
      read_all(R"({"timestamp":1711929600.5,"chunk_size":4,"seq_len":16,"chunk_hashes":[18446744073709551615,-1,"-0x1","0XFF"]})");
  ASSERT_EQ(t.at(0).hashes.size(), 4U);
  EXPECT_EQ(t.at(0).hashes[0], 18446744073709551615U);
  EXPECT_EQ(t.at(0).hashes[1], 18446744073709551615U) << "the same 64 bits, as Python writes them";
  EXPECT_EQ(std::tuple(t.at(0).hashes[2], t.at(0).hashes[3]), std::tuple(18446744073709551615U, 255U));
  const std::string row = R"({"timestamp":1,"chunk_size":4,"seq_len":8,"chunk_hashes":["0x11112222333344445555666677778888","0x)";
  const InMemoryTrace long_ones = read_all(row + "11112222333344445555666677778889\"]}");
  EXPECT_NE(long_ones.at(0).hashes[0], long_ones.at(0).hashes[1]);
  EXPECT_NE(long_ones.remark().find("every request emits 1 token"), std::string::npos);
}

std::string dynamo_row(int received_ms, int output_tokens, const std::string& hashes, const std::string& context = "") {
  return R"({"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1777312801000,"event_source":"dynamo",)" +
         context + R"("request":{"request_id":"r)" + std::to_string(received_ms) + R"(","request_received_ms":17773128)" +
         std::to_string(received_ms) + R"(,"total_time_ms":1000,"finish_reason_metadata":{"finish_reason":"stop"},"output_tokens":)" +
         std::to_string(output_tokens) + R"(,"replay":{"trace_block_size":64,"input_length":128,"input_sequence_hashes":)" + hashes +
         "}}}\n";
}

TEST(DynamoReader, RequestEndsWithRollingHashes) {
  const std::string context = R"("agent_context":{"session_id":"x","trajectory_id":"run:a","parent_trajectory_id":"run"},)";
  ReaderOptions options;
  options.any_order = true;
  InMemoryTrace t =
      read_all(dynamo_row(12500, 16, "[14879255164371896291,274632075616497421]", context) + dynamo_row(10000, 3, "[5,6]") +
                   R"({"schema":"dynamo.request.trace.v1","event_type":"tool_end","event_time_unix_ms":1,"tool":{"name":"t"}})" + "\n" +
                   dynamo_row(12600, 0, "[5,6]"),
               options);
  t.sort_by_arrival();
  EXPECT_THAT(each(t, &TraceRequest::output_tokens), ElementsAre(3, 16));
  EXPECT_EQ(std::tuple(to_s(t.at(1).arrival), t.at(1).hashes[0], t.at(1).hash_tokens), std::tuple(2.5, 14879255164371896291U, 64));
  EXPECT_GE(t.at(1).session, 0);
  EXPECT_EQ(t.at(0).session, -1);
  EXPECT_EQ(t.skipped(), "1 records other than request_end passed over; 1 requests that ended without an output token passed over");
}

TEST(DynamoReader, SessionsOfNewerFilesAndRecordsInEnvelopes) {
  const std::string context =
      R"("agent_context":{"session_id":"run:a","parent_session_id":null,"trajectory_id":null,"session_final":true},)";
  const auto inside = [](std::string row) { return R"({"timestamp":7,"event":)" + row.substr(0, row.size() - 1) + "}\n"; };
  std::string without_output = dynamo_row(12700, 3, "[7,8]");
  without_output.replace(without_output.find("\"output_tokens\":3"), 17, "\"output_tokens\":null");
  const InMemoryTrace t =
      read_all(dynamo_row(10000, 3, "[5,6]", context) + inside(dynamo_row(12500, 4, "[5,6]", context)) + without_output);
  EXPECT_THAT(each(t, &TraceRequest::output_tokens), ElementsAre(3, 4));
  EXPECT_GE(t.at(0).session, 0);
  EXPECT_EQ(std::tuple(t.at(0).session, to_s(t.at(1).arrival)), std::tuple(t.at(1).session, 2.5));
  EXPECT_EQ(t.skipped(), "1 requests without 'output_tokens' passed over");
}

// time, object, size, next access
std::string oracle_record(std::uint32_t time, std::uint64_t object, std::uint32_t size, std::int64_t next) {
  std::string bytes;
  const auto add = [&](std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  };
  add(time, 4), add(object, 8), add(size, 4), add(static_cast<std::uint64_t>(next), 8);
  return bytes;
}

TEST(OracleGeneralReader, RecordsAreOneBlockEach) {
  const TempFolder folder;
  // The first time's bytes begin as a byte order mark does.
  const std::string bytes =
      oracle_record(0x01bfbbef, 7, 100, 2) + oracle_record(0x01bfbbf1, 1ULL << 40, 5, -1) + oracle_record(0x01bfbbf1, 7, 100, -1);
  const std::string path = folder.write("t.oracleGeneral", bytes);
  const InMemoryTrace t(trace_of("{file: " + path + ", format: oracle_general, object_tokens: 4}"));
  ASSERT_EQ(t.size(), 3U);
  EXPECT_EQ(t.at(0).arrival, kStart);
  EXPECT_EQ(to_s(t.at(1).arrival), 2);
  EXPECT_EQ(t.at(0).prompt_tokens, 4);
  EXPECT_EQ(num_block_hashes(t.at(0), 4), 1U);
  EXPECT_EQ(t.at(0).hashes[0], t.at(2).hashes[0]);
  EXPECT_NE(t.at(0).hashes[0], t.at(1).hashes[0]);
  folder.write("cut", bytes.substr(0, 50));
  EXPECT_EQ(error_of([&] { InMemoryTrace(trace_of("{file: " + folder.file("cut") + ", format: oracle_general}")); }),
            folder.file("cut") + ":3: the record has 2 bytes of 24: the file is cut short, or of another format");
}

TEST(LibCacheSimCsvReader, ColumnsByNameWithTheBinaryFormsContent) {
  const InMemoryTrace t = read_all("clock_time,obj_id,obj_size,next_access_vtime\n1000,7,100,3\n1001.5,abc,5,-1\n1002,7,100,-1\n");
  ASSERT_EQ(t.size(), 3U);
  EXPECT_EQ(to_s(t.at(1).arrival), 1.5);
  EXPECT_EQ(t.at(0).hashes[0], t.at(2).hashes[0]);
  const InMemoryTrace other = read_all("when,key\n5,a\n6,b\n", {}, "{format: libcachesim_csv, time_column: when, object_column: key}");
  EXPECT_EQ(to_s(other.at(1).arrival), 1);
  const InMemoryTrace binary = trace_in_file("t", oracle_record(1, 7, 100, -1), "format: oracle_general");
  EXPECT_EQ(binary.at(0).hashes[0], read_all("clock_time,obj_id,obj_size\n1,7,100\n").at(0).hashes[0]);
}

struct ServeGenReader : ::testing::Test {
  ServeGenReader() {
    folder_.write("data/chunk-0-trace.csv", "0,2,1,Gamma,1,0.5\n600,0,0,,0,0\n1200,1,3,Weibull,0.5,0.3\n");
    folder_.write("data/chunk-0-dataset.json", R"({"0":{"input_tokens":"{100: 0.25, 200: 0.75}","output_tokens":"{0: 0.5, 8: 0.5}"}})");
    folder_.write("data/chunk-7-trace.csv", "0,1,1,Gamma,4,0.25\n600,0,0,,0,0\n1200,0,0,,0,0\n");
    folder_.write(
        "data/chunk-7-dataset.json",
        R"({"0":{"input_tokens":"{50: 1.0}","output_tokens":"{9: 1.0}","reason_ratio":"{0.5: 1.0}"},"600":{"input_tokens":"{}","output_tokens":"{}","reason_ratio":"{}"}})");
  }
  InMemoryTrace read(const std::string& more, std::uint64_t seed = 1) const {
    return InMemoryTrace(trace_of("{file: " + folder_.file("data") + more + "}", seed));
  }
  TempFolder folder_;
};

TEST_F(ServeGenReader, WindowsHaveTheirRatesAndLengths) {
  const InMemoryTrace t = read("");
  std::size_t of_zero = 0, late = 0, long_prompts = 0, ones = 0;
  for (std::size_t i = 0; i < t.size(); ++i) {
    const TraceRequest r = t.at(i);
    EXPECT_GE(r.arrival, t.at(i == 0 ? 0 : i - 1).arrival);
    if (r.facts->client == 7) {
      EXPECT_EQ(r.prompt_tokens, 50);
      EXPECT_LT(to_s(r.arrival), 600);
      continue;
    }
    EXPECT_TRUE(r.prompt_tokens == 100 || r.prompt_tokens == 200);
    EXPECT_TRUE(to_s(r.arrival) < 600 || to_s(r.arrival) >= 1200);
    ++of_zero;
    if (to_s(r.arrival) >= 1200) ++late;
    if (r.prompt_tokens == 200) ++long_prompts;
    if (r.output_tokens == 1) ++ones;
  }
  EXPECT_EQ(t.size(), 1200U + 600U + 600U) << "2/s and 1/s for 600 s, then 1/s";
  EXPECT_EQ(of_zero, 1800U);
  EXPECT_EQ(late, 600U);
  EXPECT_NEAR(static_cast<double>(long_prompts) / 1800, 0.75, 0.04);
  EXPECT_NEAR(static_cast<double>(ones) / 1800, 0.5, 0.05);
  EXPECT_EQ(t.skipped(), std::to_string(ones) + " drawn lengths of 0 tokens, taken as 1");
  EXPECT_THAT(t.remark(), has_all({"2 clients of ServeGen", "not drawn: reason_ratio"}));
}

TEST_F(ServeGenReader, GapsHaveTheRecordedVariation) {
  const InMemoryTrace t = read(", duration_s: 600");
  std::vector<double> gaps;
  double before = -1;
  for (std::size_t i = 0; i < t.size(); ++i) {
    if (t.at(i).facts->client != 7) continue;
    if (before >= 0) gaps.push_back(to_s(t.at(i).arrival) - before);
    before = to_s(t.at(i).arrival);
  }
  ASSERT_EQ(gaps.size(), 599U);
  double mean = 0, squares = 0;
  for (const double gap : gaps) mean += gap / 599;
  for (const double gap : gaps) squares += (gap - mean) * (gap - mean) / 598;
  EXPECT_NEAR(std::sqrt(squares) / mean, 0.5, 0.05) << "a gamma of shape 4 has cv 1 / sqrt(4)";
}

TEST_F(ServeGenReader, TheSeedAndTheRateDecide) {
  const InMemoryTrace a = read(", rate_per_s: 0.5, duration_s: 100"), b = read(", rate_per_s: 0.5, duration_s: 100");
  ASSERT_EQ(a.size(), 300U);
  EXPECT_EQ(a.at(100).arrival, b.at(100).arrival);
  EXPECT_NE(a.at(100).arrival, read(", rate_per_s: 0.5, duration_s: 100", 2).at(100).arrival);
  EXPECT_EQ(read(", start_s: 1300").size(), 600U);
}

TEST_F(ServeGenReader, BadData) {
  folder_.write("data/chunk-0-trace.csv", "0,2,1,Pareto,1,0.5\n600,0,0,,0,0\n");
  EXPECT_EQ(error_of([&] { read(""); }),
            folder_.file("data/chunk-0-trace.csv") + ":1: column 'pattern': 'Pareto' is neither 'Gamma', 'Weibull' nor empty");
  folder_.write("data/chunk-0-trace.csv", "0,2,1,Gamma,1,0.5\n600,0,0,,0,0\n");
  folder_.write("data/chunk-0-dataset.json", R"({"0":{"input_tokens":"{100: 0.25}","output_tokens":"{8: 1}"}})");
  EXPECT_EQ(error_of([&] { read(""); }),
            folder_.file("data/chunk-0-dataset.json") + ": window '0', 'input_tokens': its probabilities add up to 0.25, not 1");
}

// Results of `vllm bench serve` as traces: written by hand from the keys that it saves.

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
  EXPECT_THAT(each(t, &TraceRequest::prompt_tokens), ElementsAre(30, 100));
  EXPECT_THAT(each(t, &TraceRequest::output_tokens), ElementsAre(4, 20));
  EXPECT_THAT(each(t, &TraceRequest::arrival), ElementsAre(kStart, kStart + Span(250'000'000)));
  EXPECT_TRUE(t.at(1).hashes.empty());
  EXPECT_EQ(std::tuple(t.skipped(), t.remark()), std::tuple("2 failed requests left out", ""));
}

TEST(BenchServeReader, FilesWithoutStartsTakeOtherArrivals) {
  const std::string text = bench_with("\"start_times\"", "\"other_times\"");
  EXPECT_EQ(error_of([&] { read_all(text); }),
            "f: has no 'start_times', so its arrivals are unknown; give others: 'arrival: {poisson: {rate_per_s: 2}}'");
  const InMemoryTrace t = trace_in_file("bench.json", text, "arrival: {constant: {rate_per_s: 2}}");
  EXPECT_THAT(each(t, &TraceRequest::prompt_tokens), ElementsAre(100, 30)) << "in order of the entries";
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
