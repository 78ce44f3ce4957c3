#include <fstream>
#include <sstream>

#include "base/hash.h"
#include "tests/traces/trace_test_files.h"
#include "traces/block_hashes.h"

namespace kvlab {
namespace {

TEST(AzureReader, Dialects) {
  const InMemoryTrace t = read_all(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 18:15:46.6805900,374,44\n"
      "2023-11-16 18:15:50.9951690,396,109\n");
  ASSERT_EQ(t.size(), 2U);
  EXPECT_EQ(std::tuple(t.at(0).arrival, t.at(0).prompt_tokens, t.at(0).output_tokens), std::tuple(kStart, 374, 44));
  EXPECT_EQ(std::tuple(ns(t.at(1).arrival), t.at(1).session, t.at(1).hashes.empty()), std::tuple(4'314'579'000, -1, true));
  const InMemoryTrace zones = read_all(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2024-05-11 23:59:59.999999+00:00,10,2\r\n"
      "2024-05-12 00:00:00+00:00,11,3\r\n"
      "2024-05-12 02:00:01+02:00,12,4");
  ASSERT_EQ(zones.size(), 3U);
  EXPECT_EQ(std::tuple(ns(zones.at(1).arrival), ns(zones.at(2).arrival)), std::tuple(1'000, 1'000'001'000));
  const InMemoryTrace quoted = read_all("\xef\xbb\xbfGeneratedTokens,TIMESTAMP,ContextTokens\n44,\"2023-11-16 18:15:46\",374\n");
  EXPECT_EQ(std::tuple(quoted.at(0).prompt_tokens, quoted.at(0).output_tokens), std::tuple(374, 44));
}

TEST(MooncakeReader, ChainsIdsAndKeepsThePartialLastBlock) {
  const InMemoryTrace t = read_all(R"({"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1024, "output_length": 1, "hash_ids": [0, 7]}
{"timestamp": 3000.5, "input_length": 1024, "output_length": 1, "hash_ids": [3, 7]})",
                                   {}, "block_size: 512");
  ASSERT_EQ(t.size(), 3U);
  EXPECT_EQ(std::tuple(ns(t.at(1).arrival), ns(t.at(2).arrival)), std::tuple(3'000'000'000, 3'000'500'000));
  EXPECT_EQ(t.at(0).hash_tokens, 512);
  ASSERT_EQ(t.at(0).hashes.size(), 3U);
  EXPECT_EQ(t.at(0).hashes[0], t.at(1).hashes[0]);
  EXPECT_NE(t.at(1).hashes[1], t.at(2).hashes[1]) << "same id behind another prefix is another prefix";
  EXPECT_EQ(num_block_hashes(t.at(0), 512), 2U);
  EXPECT_EQ(num_block_hashes(t.at(0), 16), 68U);
}

TEST(MooncakeReader, DynamoDialectWithSessions) {
  const InMemoryTrace t =
      read_all(R"({"created_time":10,"input_tokens":100,"output_tokens":5,"session_id":"chat-a","block_size":64,"hash_ids":[1,2]}
{"delay":250,"input_tokens":170,"output_tokens":6,"session_id":"chat-a","block_size":64,"hash_ids":[1,2,3]}
{"created_time":20,"input_tokens":10,"output_tokens":5,"session_id":12})");
  ASSERT_EQ(t.size(), 3U);
  EXPECT_EQ(std::tuple(t.at(0).is_follow_up, t.at(1).is_follow_up), std::tuple(false, true));
  EXPECT_EQ(to_ms(t.at(1).delay), 250);
  EXPECT_EQ(t.at(0).session, t.at(1).session);
  EXPECT_GE(t.at(0).session, 0);
  EXPECT_EQ(t.at(2).session, 12);
  EXPECT_EQ(std::tuple(t.at(0).hash_tokens, t.at(0).hashes[1]), std::tuple(64, t.at(1).hashes[1]));
  EXPECT_EQ(t.at(2).hash_tokens, 0);
}

TEST(MooncakeReader, SortGathersTurnsThatStandApart) {
  ReaderOptions options;
  options.any_order = true;
  InMemoryTrace t = read_all(R"({"timestamp":30,"input_length":3,"output_length":1,"session_id":1}
{"timestamp":10,"input_length":1,"output_length":1}
{"delay":5,"input_length":4,"output_length":1,"session_id":1}
{"timestamp":40,"input_length":6,"output_length":1}
{"delay":6,"input_length":5,"output_length":1,"session_id":1})",
                             options);
  t.sort_by_arrival();
  EXPECT_THAT(each(t, &TraceRequest::prompt_tokens), ElementsAre(1, 3, 4, 5, 6));
}

TEST(BurstGptReader, BothHeadersAndFailedRequests) {
  const std::string old_header =
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n"
      "45,ChatGPT,1087,0,1087,Conversation log\n"
      "118,GPT-4,417,276,693,API log\n";
  const InMemoryTrace a = read_all(old_header, {}, "skip_failed: true");
  ASSERT_EQ(a.size(), 2U);
  EXPECT_EQ(a.at(0).arrival, kStart);
  EXPECT_EQ(to_s(a.at(1).arrival), 113);
  EXPECT_EQ(a.skipped(), "1 failed requests (0 response tokens) passed over");
  const InMemoryTrace b = read_all(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5.25,77,3.5,ChatGPT,472,18,490,Conversation log\n"
      "6,,3.5,ChatGPT,47,1,48,Conversation log\n");
  EXPECT_EQ(std::tuple(b.at(0).session, b.at(1).session), std::tuple(77, -1));
  EXPECT_EQ(to_s(b.at(1).arrival), 0.75);
}

TEST(VidurReader, WithArrivalsOrAProcess) {
  const InMemoryTrace t = read_all("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n5e-05,1,2\n4.314578999,396,109\n");
  EXPECT_EQ(std::tuple(ns(t.at(1).arrival), ns(t.at(2).arrival)), std::tuple(50'000, 4'314'578'999));
  const InMemoryTrace without =
      trace_in_file("arxiv.csv", "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n10,20,30,0.5\n",
                    "arrival: {constant: {rate_per_s: 4}}");
  EXPECT_THAT(each(without, &TraceRequest::prompt_tokens), ElementsAre(3772, 10));
  EXPECT_EQ(to_s(without.at(1).arrival), 0.25);
}

TEST(SplitwiseReader, Row) {
  const InMemoryTrace t = read_all(
      "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
      "0,2,0,1,1,4096,32\n1,2,0,1.5,1,10,3\n");
  EXPECT_EQ(std::tuple(to_s(t.at(0).arrival), to_s(t.at(1).arrival), t.at(0).prompt_tokens), std::tuple(1, 1.5, 4096));
  EXPECT_EQ(t.at(0).output_tokens, 32);
}

TEST(LlmServingSimReader, TokenIdsBecomeAChainOverPromptAndOutput) {
  const InMemoryTrace t =
      read_all(R"({"input_toks":3,"output_toks":2,"arrival_time_ns":46926808,"input_tok_ids":[5,6,7],"output_tok_ids":[8,9]}
{"input_toks":4,"output_toks":1,"arrival_time_ns":46926809,"input_tok_ids":[5,6,7,8],"output_tok_ids":[1]}
{"input_toks":4,"output_toks":1,"arrival_time_ns":46926810,"input_tok_ids":[1,6,7,8],"output_tok_ids":[1]})",
               {}, "block_tokens: 2");
  EXPECT_EQ(ns(t.at(0).arrival), 46'926'808);
  ASSERT_EQ(t.at(0).hashes.size(), 2U) << "five tokens are two full blocks";
  EXPECT_EQ(t.at(0).hashes[0], hash_combine(hash_combine(mix64(2), 5), 6));
  EXPECT_EQ(t.at(0).hashes[1], t.at(1).hashes[1]) << "a generated token can be shared with a later prompt";
  EXPECT_NE(t.at(1).hashes[1], t.at(2).hashes[1]);
}

TEST(LlmServingSimReader, SessionsOfAgents) {
  const InMemoryTrace t = read_all(
      R"({"session_id":"s1","arrival_time_ns":100,"sub_requests":[{"input_toks":10,"output_toks":3,"tool_duration_ns":7000},{"input_toks":20,"output_toks":4,"tool_duration_ns":0}]}
{"input_toks":5,"output_toks":1,"arrival_time_ns":200})");
  ASSERT_EQ(t.size(), 3U);
  EXPECT_EQ(std::tuple(t.at(0).is_follow_up, t.at(1).is_follow_up), std::tuple(false, true));
  EXPECT_EQ(std::tuple(ns(t.at(1).delay), t.at(1).prompt_tokens), std::tuple(7000, 20));
  EXPECT_EQ(t.at(0).session, t.at(1).session);
  EXPECT_EQ(std::tuple(t.at(2).is_follow_up, ns(t.at(2).arrival)), std::tuple(false, 200));
}

TEST(Readers, GoBackwardsOnlyWhenSorted) {
  const TempFolder folder;
  const std::string path = folder.write("t.csv",
                                        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,2,1\n2023-11-16 18:15:40,1,1\n"
                                        "2023-11-16 18:15:46,3,1\n");
  EXPECT_NE(error_of([&] { InMemoryTrace(trace_of("file: " + path)); }).find("6 s before the row above"), std::string::npos);
  const InMemoryTrace t(trace_of("{file: " + path + ", sort: true}"));
  EXPECT_THAT(each(t, &TraceRequest::prompt_tokens), ElementsAre(1, 2, 3)) << "rows of one instant keep their order";
  EXPECT_EQ(std::tuple(t.at(0).arrival, to_s(t.at(1).arrival)), std::tuple(kStart, 6));
}

TEST(Readers, AnUnknownFormatNamesTheNearest) {
  EXPECT_EQ(error_of([] { read_all("TIMESTAMP,ContextTokens,GeneratedTokens", {}, "format: azur"); }),
            "unknown trace format 'azur'; did you mean 'azure'?");
}

TEST(RealTraces, Azure2023Conversation) {
  const std::string path = data_file("traces/azure_2023_conv.csv");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent; see docs/traces.md, and set KVLAB_DATA";
  const InMemoryTrace t(open_trace(path));
  ASSERT_EQ(t.size(), 19'366U);
  double prompts = 0;
  double outputs = 0;
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

// One line of tests/bad_traces/expected.txt: file, message ({file}: its path, {config}: the mapping that names it), and
// the other keys of that mapping.
struct BadTrace {
  std::string file, message, options;
};

void PrintTo(const BadTrace& bad, std::ostream* out) { *out << bad.file; }

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) text.replace(at, what.size(), by);
  return text;
}

std::vector<BadTrace> bad_traces() {
  std::vector<BadTrace> all;
  std::ifstream expected(KVLAB_SOURCE_DIR "/tests/bad_traces/expected.txt");
  for (std::string line; std::getline(expected, line);) {
    std::istringstream parts(line);
    BadTrace bad;
    std::getline(parts, bad.file, '\t');
    std::getline(parts, bad.message, '\t');
    std::getline(parts, bad.options, '\t');
    all.push_back(bad);
  }
  return all;
}

class BadTraces : public testing::TestWithParam<BadTrace> {};

TEST_P(BadTraces, StopsWithThisMessage) {
  const BadTrace& bad = GetParam();
  const std::string path = KVLAB_SOURCE_DIR "/tests/bad_traces/" + bad.file;
  ASSERT_TRUE(std::filesystem::exists(path));
  const std::string yaml = "file: " + path + "\n" + replaced(bad.options, ", ", "\n") + "\n";
  const std::string message = error_of([&] { InMemoryTrace(trace_of(yaml)); });
  EXPECT_EQ(message, replaced(replaced(bad.message, "{file}", path), "{config}", "<test>"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, BadTraces, testing::ValuesIn(bad_traces()));

TEST(BadTraces, EveryFileIsInTheList) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KVLAB_SOURCE_DIR "/tests/bad_traces"))
    if (entry.path().filename() != "expected.txt") ++files;
  EXPECT_EQ(files, bad_traces().size());
  EXPECT_GE(files, 25U);
}

TEST(BadTraces, MissingFilesFoldersAndTooLongALine) {
  EXPECT_EQ(error_of([] { open_trace("/nonexistent/t.csv"); }), "/nonexistent/t.csv: cannot be opened: No such file or directory");
  EXPECT_EQ(error_of([] { open_trace("/tmp"); }), "/tmp: is a directory; a trace file is expected");
  const std::string text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + std::string(LineReader::kMaxLineBytes + 1, '1');
  EXPECT_EQ(error_of([&] { read_all(text); }), "f:2: the line is longer than 64 MiB; a trace holds one request per line");
}

}  // namespace
}  // namespace kvlab
