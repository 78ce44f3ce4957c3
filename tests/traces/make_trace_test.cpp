#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "tests/memory_run.h"
#include "tests/traces/trace_test_files.h"
#include "traces/numbers.h"
#include "traces/trace_tools.h"
#include "traces/write_trace.h"

namespace kvlab {
namespace {

constexpr const char* kFiveRows =
    "arrival_ns,prompt_tokens,output_tokens,session,delay_ns,hash_tokens,hashes\n"
    "1000,10,5,1,,,\n"
    ",20,6,1,50,,\n"
    "3000,100,7,,,16,1 2 3 4 5 6\n"
    "4000,30,70,,,16,11 12 13 14 15 16\n"
    "6000,50,9,,,,\n";

std::string five_rows(const TempFolder& folder) { return folder.write("t.csv", kFiveRows); }

TEST(MakeTrace, OffsetAndLimit) {
  const TempFolder folder;
  const std::string path = five_rows(folder);
  const InMemoryTrace all(trace_of("file: " + path));
  EXPECT_EQ(all.size(), 5U);
  EXPECT_EQ(ns(all.at(0).arrival), 1000) << "a clock of its own stays as it is";
  const InMemoryTrace some(trace_of("{file: " + path + ", offset: 2, limit_requests: 2}"));
  ASSERT_EQ(some.size(), 2U);
  EXPECT_EQ(some.at(0).arrival, kStart);
  EXPECT_EQ(std::tuple(ns(some.at(1).arrival), some.at(1).prompt_tokens), std::tuple(1000, 30));
  const InMemoryTrace orphan(trace_of("{file: " + path + ", offset: 1}"));
  EXPECT_THAT(each(orphan, &TraceRequest::prompt_tokens), ElementsAre(100, 30, 50));
  EXPECT_EQ(orphan.skipped(), "1 later turns left out with their session's start by 'offset'");
}

TEST(MakeTrace, CutsLengthsAndTheirHashes) {
  const InMemoryTrace t = trace_in_file("t.csv", kFiveRows, "max_prompt_tokens: 40, max_output_tokens: 8");
  EXPECT_EQ(t.at(2).prompt_tokens, 40);
  EXPECT_EQ(t.at(2).hashes.size(), 2U) << "floor(40 / 16)";
  EXPECT_EQ(t.at(3).output_tokens, 8);
  EXPECT_EQ(t.at(3).hashes.size(), 2U) << "floor(38 / 16)";
  EXPECT_EQ(t.skipped(), "2 prompts cut to 40 tokens; 2 outputs cut to 8 tokens");
}

TEST(MakeTrace, ArrivalsReplaced) {
  const TempFolder folder;
  const InMemoryTrace t(trace_of("{file: " + five_rows(folder) + ", arrival: {constant: {rate_per_s: 2}}}"));
  EXPECT_EQ(to_s(t.at(0).arrival), 0);
  EXPECT_TRUE(t.at(1).is_follow_up);
  EXPECT_EQ(std::tuple(to_s(t.at(2).arrival), to_s(t.at(4).arrival)), std::tuple(0.5, 1.5));
  EXPECT_EQ(trace_of("{file: " + folder.file("t.csv") + ", arrival: {closed_loop: {concurrency: 2}}}")->closed_loop().concurrency, 2);
}

TEST(MakeTrace, JitterMovesWithinItsBoundsAndKeepsTheOrder) {
  const std::string yaml =
      "generate: {requests: 2000, arrival: {poisson: {rate_per_s: 200}}, prompt_tokens: {uniform: {min: 1, max: 100000}}, output_tokens: 1,"
      " sessions: {turns: {geometric: {mean: 2}}, max_context_tokens: 1000000}}";
  const InMemoryTrace plain(trace_of(yaml));
  const InMemoryTrace a(trace_of(yaml + "\njitter_ms: 20"));
  const InMemoryTrace b(trace_of(yaml + "\njitter_ms: 20", 1));
  std::map<std::int64_t, Time> recorded;
  for (std::size_t i = 0; i < plain.size(); ++i)
    if (!plain.at(i).is_follow_up) recorded[plain.at(i).session] = plain.at(i).arrival;
  ASSERT_EQ(a.size(), plain.size());
  Time before = kStart;
  double furthest_ms = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const TraceRequest r = a.at(i);
    EXPECT_EQ(r.arrival, b.at(i).arrival);
    if (r.is_follow_up) {
      EXPECT_EQ(r.session, a.at(i - 1).session);
      continue;
    }
    EXPECT_GE(r.arrival, before);
    EXPECT_EQ(r.session, plain.at(i).session);  // nobody overtakes
    before = r.arrival;
    furthest_ms = std::max(furthest_ms, std::abs(to_ms(r.arrival - recorded[r.session])));
  }
  EXPECT_LE(furthest_ms, 20.0);
  EXPECT_GT(furthest_ms, 19.0);
}

TEST(MakeTrace, RefusesKeysWithoutMeaning) {
  const TempFolder folder;
  const std::string path = five_rows(folder);
  EXPECT_EQ(error_of([&] { trace_of("file: " + path + "\nlimit_request: 5"); }),
            "<test>:2:1: unknown key 'limit_request' in test; did you mean 'limit_requests'?");
  EXPECT_EQ(error_of([&] { trace_of("file: " + path + "\nformat: kvlab"); }).substr(0, 43), "<test>:2:9: 'format': unknown value 'kvlab'");
  EXPECT_EQ(error_of([&] { trace_of("file: " + path + "\nskip_failed: true"); }),
            "<test>:2:14: 'skip_failed' has a meaning for format 'burstgpt' only; this trace is 'kvlab_csv'");
  EXPECT_EQ(error_of([&] { trace_of("file: " + path + "\narrival: {closed_loop: {concurrency: 1}}\njitter_ms: 5"); }),
            "<test>:3:12: 'jitter_ms' has no meaning in a closed loop: arrivals follow from completions");
  const std::string both = error_of([&] {
    trace_of("file: " + path + "\ngenerate: {requests: 1, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: 1, output_tokens: 1}");
  });
  EXPECT_EQ(both, "<test>:1:1: 'trace' needs either 'file: PATH' or 'generate: {...}'");
  EXPECT_THAT(error_of([] {
                trace_of("sort: true\ngenerate: {requests: 1, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: 1, output_tokens: 1}");
              }),
              HasSubstr("unknown key 'sort'"));
}

TEST(MakeTrace, DescribesItsKeys) {
  std::vector<ParamDoc> docs;
  Params p = Params::describing("trace", docs);
  make_trace(p, 1);
  std::vector<std::string> keys;
  for (const ParamDoc& doc : docs) keys.push_back(doc.key);
  EXPECT_THAT(keys, testing::IsSupersetOf({"file", "format", "block_size", "block_tokens", "skip_failed", "sort", "offset",
                                           "limit_requests", "arrival", "jitter_ms"}));
}

TEST(TraceTools, SummaryOfFiveRequests) {
  const TempFolder folder;
  const TraceSummary s = summarize(*trace_of("file: " + five_rows(folder)));
  EXPECT_EQ(std::tuple(s.num_requests, s.num_follow_ups, s.num_sessions), std::tuple(5U, 1U, 1U));
  EXPECT_DOUBLE_EQ(s.duration_s, 5e-6);
  EXPECT_DOUBLE_EQ(s.rate_per_s, 3 / 5e-6);
  EXPECT_NEAR(s.gap_cv, std::sqrt(1.0 / 3) / (5.0 / 3), 1e-9);  // gaps 2, 1, 2 us: mean 5/3, variance 1/3
  EXPECT_EQ(std::tuple(s.prompt_tokens.mean, s.prompt_tokens.min, s.prompt_tokens.p50, s.prompt_tokens.p90, s.prompt_tokens.max),
            std::tuple(42, 10, 30, 100, 100));
  EXPECT_EQ(std::tuple(s.num_prompt_blocks, s.num_seen_blocks, s.num_distinct_blocks), std::tuple(6U + 1U, 0U, 12U));
  std::ostringstream text;
  inspect(*trace_of("file: " + five_rows(folder)), text);
  EXPECT_THAT(text.str(), has_all({"requests       5\n", "7 full prompt blocks of 16 tokens, 0.0 % seen before"}));
}

TEST(TraceTools, RealStatistics) {
  const std::string azure = data_file("traces/azure_2023_conv.csv");
  const std::string mooncake = data_file("traces/mooncake_conversation.jsonl");
  if (!std::filesystem::exists(azure) || !std::filesystem::exists(mooncake)) GTEST_SKIP() << azure << " or " << mooncake << " is absent";
  const TraceSummary a = summarize(*trace_of("file: " + azure));
  EXPECT_EQ(std::tuple(a.num_requests, a.prompt_tokens.p50, a.output_tokens.p50), std::tuple(19'366U, 1020, 129));
  EXPECT_NEAR(a.rate_per_s, 5.530, 0.001);
  EXPECT_NEAR(a.gap_cv, 1.0942, 0.0001);
  const TraceSummary m = summarize(*trace_of("{file: " + mooncake + ", block_size: 512}"));
  EXPECT_EQ(std::tuple(m.num_requests, m.num_distinct_blocks, m.prompt_tokens.p50), std::tuple(12'031U, 182'790U, 6909));
  EXPECT_EQ(m.output_tokens.p50, 350);
}

TEST(RealTraces, Azure2023Conversation) {
  const std::string path = data_file("traces/azure_2023_conv.csv");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent; see docs/traces.md, and set KVLAB_DATA";
  const InMemoryTrace t(open_trace(path));
  ASSERT_EQ(t.size(), 19'366U);
  double prompts = 0, outputs = 0;
  for (std::size_t i = 0; i < t.size(); ++i) prompts += t.at(i).prompt_tokens, outputs += t.at(i).output_tokens;
  EXPECT_NEAR(prompts / 19'366, 1154.697, 0.001);
  EXPECT_NEAR(outputs / 19'366, 211.126, 0.001);
  EXPECT_EQ(ns(t.at(t.size() - 1).arrival), 3'501'721'937'000);
}

TEST(RealTraces, MooncakeConversation) {
  const std::string path = data_file("traces/mooncake_conversation.jsonl");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent; see docs/traces.md, and set KVLAB_DATA";
  const InMemoryTrace t(trace_of("{file: " + path + ", block_size: 512}"));
  ASSERT_EQ(t.size(), 12'031U);
  double prompts = 0;
  std::size_t hashes = 0;
  for (std::size_t i = 0; i < t.size(); ++i) prompts += t.at(i).prompt_tokens, hashes += t.at(i).hashes.size();
  EXPECT_NEAR(prompts / 12'031, 12'035.061, 0.001);
  EXPECT_EQ(ns(t.at(t.size() - 1).arrival), 3'536'999'000'000);
  EXPECT_GT(hashes, 280'000U);
  EXPECT_LT(t.memory_bytes() - hashes * sizeof(std::uint64_t), 32 * t.size());
}

TEST(RealTraces, LlmServingSimWorkload) {
  const std::string path = data_file("vllm-reference/sharegpt-llama-3.1-8b-300-sps10.jsonl");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent; see docs/traces.md, and set KVLAB_DATA";
  const InMemoryTrace t(trace_of("file: " + path));
  ASSERT_EQ(t.size(), 300U);
  EXPECT_EQ(ns(t.at(0).arrival), 46'926'808);
  EXPECT_EQ(std::tuple(t.at(0).prompt_tokens, t.at(0).output_tokens, t.at(0).hashes.size()), std::tuple(2358, 531, 2889U / 16));
}

// The shipped samples are what their own recipes make; a libm that rounds otherwise may move a time by a nanosecond.
TEST(Samples, AreWhatTheirRecipesMake) {
  const std::string folder = KVLAB_SOURCE_DIR "/traces/samples/";
  for (const auto& [sample, recipe] : std::array<std::pair<std::string, std::string>, 2>{
           {{"azure_like.csv", "azure_like.yaml"}, {"mooncake_like.jsonl.gz", "mooncake_like.yaml"}}}) {
    EXPECT_LT(std::filesystem::file_size(folder + sample), 100'000U);
    Params experiment(load_config(folder + recipe), std::make_shared<Choices>(), recipe);
    const auto seed = static_cast<std::uint64_t>(experiment.required<std::int64_t>("seed", 0, 1 << 30, "seed"));
    Params p = experiment.child("trace", "trace");
    const InMemoryTrace made(make_trace(p, seed));
    const InMemoryTrace shipped(open_trace(folder + sample));
    ASSERT_EQ(made.size(), shipped.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
      EXPECT_NEAR(to_s(made.at(i).arrival), to_s(shipped.at(i).arrival), 1e-6);
      EXPECT_NEAR(made.at(i).prompt_tokens, shipped.at(i).prompt_tokens, 1);
      EXPECT_NEAR(made.at(i).output_tokens, shipped.at(i).output_tokens, 1);
    }
  }
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

#if defined(KVLAB_SANITIZED)
constexpr bool kIsSanitized = true;  // freed memory is kept back there, and everything takes ten times as long
#else
constexpr bool kIsSanitized = false;
#endif

TEST(Streaming, TwoMillionRequestsInConstantMemory) {
  const TempFolder folder;
  const std::string path = folder.file("big.csv.zst");
  const std::uint64_t requests = kIsSanitized ? 50'000 : 2'000'000;
  const auto source =
      trace_of("generate: {requests: " + std::to_string(requests) +
               ", arrival: {poisson: {rate_per_s: 1000}}, prompt_tokens: {lognormal: {median: 1000, sigma: 1}}, output_tokens: 100}");
  const std::size_t before = resident_bytes();
  EXPECT_EQ(write_trace(*source, path), requests);
  const auto reader = trace_of("file: " + path);
  std::uint64_t count = 0;
  for (TraceRequest r; reader->next(r);) ++count;
  EXPECT_EQ(count, requests);
  if (kIsSanitized) return;
  // The rows are 60 MB as text and 32 MB as arrays; the packer's and unpacker's windows are some 10 MB.
  EXPECT_LT(resident_bytes(), before + (std::size_t{24} << 20));
}

struct Row {
  TraceRequest request;
  std::vector<std::uint64_t> hashes;
};

std::vector<Row> random_rows() {
  const auto count = *rc::gen::inRange<std::size_t>(1, 30);
  std::vector<Row> rows;
  std::int64_t now = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Row row;
    TraceRequest& r = row.request;
    r.prompt_tokens = *rc::gen::inRange(1, 200);
    r.output_tokens = *rc::gen::inRange(1, 200);
    r.is_follow_up = i > 0 && rows.back().request.session >= 0 && *rc::gen::arbitrary<bool>();
    if (r.is_follow_up)
      r.delay = Span(*rc::gen::inRange<std::int64_t>(0, kMaxTraceNs));
    else
      r.arrival = Time(Span(now += *rc::gen::inRange<std::int64_t>(0, 1'000'000'000'000)));
    r.session = r.is_follow_up ? rows.back().request.session : *rc::gen::inRange<std::int64_t>(-1, 1000);
    if (*rc::gen::arbitrary<bool>()) {
      r.hash_tokens = *rc::gen::inRange(1, 64);
      const int most = (r.prompt_tokens + r.output_tokens) / r.hash_tokens;
      const int num_hashes = *rc::gen::inRange(0, most + 1);
      for (int k = 0; k < num_hashes; ++k) row.hashes.push_back(*rc::gen::arbitrary<std::uint64_t>());
      if (row.hashes.empty()) r.hash_tokens = 0;
    }
    rows.push_back(row);
  }
  return rows;
}

void expect_equal(TraceSource& trace, const std::vector<Row>& rows) {
  const auto facts = [](const TraceRequest& r) {
    return std::tuple(r.arrival, r.is_follow_up, r.delay, r.prompt_tokens, r.output_tokens, r.session, r.hash_tokens);
  };
  TraceRequest r;
  for (const Row& row : rows) {
    RC_ASSERT(trace.next(r));
    RC_ASSERT(facts(r) == facts(row.request));
    RC_ASSERT(std::vector<std::uint64_t>(r.hashes.begin(), r.hashes.end()) == row.hashes);
  }
  RC_ASSERT(!trace.next(r));
}

RC_GTEST_PROP(WriteTrace, EveryFieldComesBack, ()) {
  const TempFolder folder;
  const std::vector<Row> rows = random_rows();
  const std::string name = *rc::gen::element<std::string>("t.csv", "t.jsonl", "t.csv.gz", "t.jsonl.zst");
  std::vector<TraceRequest> requests;
  for (const Row& row : rows) requests.push_back(row.request), requests.back().hashes = row.hashes;
  test::VectorTrace source(requests);
  RC_ASSERT(write_trace(source, folder.file(name)) == rows.size());
  RC_ASSERT(!std::filesystem::exists(folder.file(name + ".part")));
  expect_equal(*open_trace(folder.file(name)), rows);
  InMemoryTrace held(open_trace(folder.file(name)));
  expect_equal(held, rows);
  held.rewind();
  expect_equal(held, rows);
}

TEST(WriteTrace, PackedByName) {
  const TempFolder folder;
  for (const std::string name : {"t.csv.gz", "t.csv.zst", "t.csv"}) {
    const auto source = trace_of("generate: {requests: 3000, arrival: {poisson: {rate_per_s: 5}}, prompt_tokens: 100, output_tokens: 7}");
    EXPECT_EQ(write_trace(*source, folder.file(name)), 3000U);
  }
  EXPECT_TRUE(read_if_there(folder.file("t.csv.gz")).starts_with("\x1f\x8b"));
  EXPECT_TRUE(read_if_there(folder.file("t.csv.zst")).starts_with("\x28\xb5\x2f\xfd"));
  EXPECT_LT(std::filesystem::file_size(folder.file("t.csv.zst")), std::filesystem::file_size(folder.file("t.csv")) / 2);
  // Concatenated members are one file, whatever its name says.
  const std::string header_and_rows = read_if_there(folder.file("t.csv.gz"));
  std::filesystem::copy(folder.file("t.csv.gz"), folder.file("plain_name"));
  EXPECT_EQ(InMemoryTrace(open_trace(folder.file("plain_name"))).size(), 3000U);
}

TEST(WriteTrace, NothingIsLeftOfATraceThatStops) {
  const TempFolder folder;
  const std::string bad = folder.write("bad.csv", "arrival_ns,prompt_tokens,output_tokens\n0,1,1\n0,0,1\n");
  const auto source = open_trace(bad);
  EXPECT_THROW(write_trace(*source, folder.file("out.csv.gz")), InputError);
  EXPECT_FALSE(std::filesystem::exists(folder.file("out.csv.gz")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("out.csv.gz.part")));
}

TEST(WriteTrace, NameWithoutFormat) {
  const TempFolder folder;
  const auto source = trace_of("generate: {requests: 1, arrival: {poisson: {rate_per_s: 5}}, prompt_tokens: 100, output_tokens: 7}");
  EXPECT_EQ(error_of([&] { write_trace(*source, "out.txt"); }),
            "out.txt: the name of a trace to write ends in .csv or .jsonl, and then in .gz or .zst to pack it");
  EXPECT_EQ(error_of([&] { write_trace(*source, "out.csv", "mooncak"); }),
            "a trace cannot be written as 'mooncak'; did you mean 'mooncake'?");
}

TEST(WriteTrace, MooncakeKeepsSharing) {
  const TempFolder folder;
  const std::string yaml =
      "generate: {requests: 200, arrival: {poisson: {rate_per_s: 5}}, prompt_tokens: {uniform: {min: 1, max: 900}}, output_tokens: 7,"
      " sessions: {turns: 3}, shared_prefix: {num_groups: 3, tokens: 640}, block_tokens: 64}";
  const auto source = trace_of(yaml);
  write_trace(*source, folder.file("m.jsonl"), "mooncake");
  const TraceSummary before = summarize(*trace_of(yaml));
  const TraceSummary after = summarize(*open_trace(folder.file("m.jsonl")));
  EXPECT_EQ(std::tuple(after.num_requests, after.num_follow_ups, after.num_prompt_blocks, after.hash_tokens),
            std::tuple(200U, before.num_follow_ups, before.num_prompt_blocks, 64));
  EXPECT_GT(after.num_seen_blocks, before.num_prompt_blocks / 4);
}

}  // namespace
}  // namespace kvlab
