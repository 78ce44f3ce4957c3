#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "base/config/config_file.h"
#include "base/hash.h"
#include "tests/traces/trace_test_files.h"
#include "traces/block_hashes.h"
#include "traces/trace_tools.h"

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

TEST(MooncakeReader, ListsOfIdsInAnyForm) {
  const auto row = [](const std::string& ids) {
    return R"({"input_length": 32, "output_length": 1, "timestamp": 0, "hash_ids": )" + ids + "}";
  };
  const auto ids_of = [&](const std::string& ids) {
    const InMemoryTrace t = read_all(row(ids), {}, "block_size: 16");
    return std::vector<std::uint64_t>(t.at(0).hashes.begin(), t.at(0).hashes.end());
  };
  const auto plain = ids_of("[7, 1234567890123456789]");
  for (const std::string ids : {"[7,1234567890123456789]", "[ 7 , 1234567890123456789 ]", "[\t7,\"1234567890123456789\"]"})
    EXPECT_EQ(ids_of(ids), plain) << ids;
  EXPECT_EQ(ids_of("[18446744073709551615, 0]").size(), 2U);
  for (const std::string ids :
       {"[7, 08]", "[7, -8]", "[7, 8.0]", "[7, 18446744073709551616]", "[7 8]", "[7, 8", "[7,, 8]", "[7, 8,]", "[7, [8]]"})
    EXPECT_NE(error_of([&] { ids_of(ids); }), "no error") << ids;
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

// Kinds of files that users bring: each as it was met, and its neighbours.

// Beside `file: PATH` the options of a `trace:` mapping.
InMemoryTrace trace_with(const std::string& path, const std::string& options = "") {
  return InMemoryTrace(trace_of("{file: " + path + (options.empty() ? "" : ", ") + options + "}"));
}

constexpr const char* kBailian =
    R"({"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 20, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]}
{"chat_id": 2, "parent_chat_id": -1, "timestamp": 1.25, "input_length": 33, "output_length": 8, "type": "search", "turn": 1, "hash_ids": [1, 4, 5]}
{"chat_id": 3, "parent_chat_id": 1, "timestamp": 61.114, "input_length": 80, "output_length": 12, "type": "text", "turn": 2, "hash_ids": [1, 2, 6, 7, 8]}
{"chat_id": 5, "parent_chat_id": 3, "timestamp": 70, "input_length": 96, "output_length": 1, "type": "text", "turn": 3, "hash_ids": [1, 2, 6, 7, 8, 9]}
{"chat_id": 8, "parent_chat_id": 7, "timestamp": 71, "input_length": 1, "output_length": 1, "type": "text", "turn": 2, "hash_ids": [10]}
)";

TEST(BailianReader, TurnsOfAChatAreASession) {
  const InMemoryTrace t = read_all(kBailian);
  EXPECT_THAT(each(t, &TraceRequest::session), ElementsAre(1, 2, 1, 1, 7)) << "the first turn of the last one was cut off";
  EXPECT_EQ(ns(t.at(2).arrival), 61'114'000'000);
  EXPECT_FALSE(t.at(2).is_follow_up) << "its time is recorded";
  EXPECT_EQ(std::tuple(t.at(2).hash_tokens, t.at(2).hashes[1]), std::tuple(16, t.at(0).hashes[1]));
  EXPECT_NE(t.at(2).hashes[2], t.at(0).hashes[2]);
  EXPECT_EQ(t.remark(), "");
}

std::string mooncake_rows(const std::vector<std::string>& times) {
  std::string text;
  for (const std::string& time : times) text += "{\"timestamp\": " + time + R"(, "input_length": 4, "output_length": 2})" + "\n";
  return text;
}

std::vector<std::string> evenly(int count, double gap, int decimals) {
  std::vector<std::string> times;
  for (int i = 0; i < count; ++i) times.push_back(fmt::format("{:.{}f}", i * gap, decimals));
  return times;
}

TEST(ArrivalUnit, RemarksOnTimesOfAnotherUnitOnly) {
  std::string vidur = "arrived_at,num_prefill_tokens,num_decode_tokens\n";
  for (int i = 0; i < 20; ++i) vidur += fmt::format("{},10,5\n", i * 2500);
  const struct {
    const char* name;
    std::string text;
    bool is_doubted;
  } cases[] = {
      {"a minute in seconds", mooncake_rows({"0.5", "1.25", "61.114"}), true},
      {"two hours in seconds", mooncake_rows(evenly(1000, 7.2005, 4)), true},
      {"whole seconds", mooncake_rows(evenly(100, 5, 0)), true},
      {"microseconds", mooncake_rows({"0", "2000000", "5000000"}), true},
      {"two hours in ms", mooncake_rows(evenly(1000, 7200, 0)), false},
      {"ms with fractions, as this program writes them", mooncake_rows(evenly(1000, 200.125, 3)), false},
      {"all at once", mooncake_rows(evenly(100, 0, 0)), false},
      {"bins of 3 s", mooncake_rows({"0", "0", "0", "3000", "3000"}), false},
      {"milliseconds in a format of seconds", vidur, true},
      {"seconds", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n0.0001,1,1\n5,10,1\n", false},
      {"dates", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.9999999,1,1\n2023-11-17 00:00:00.0000001,1,1\n", false},
      {"a unit in the column's name", "arrival_ns,prompt_tokens,output_tokens\n0,5,1\n1000,3,5\n2000,9,1\n", false},
  };
  for (const auto& c : cases) EXPECT_EQ(!read_all(c.text).remark().empty(), c.is_doubted) << c.name;
}

TEST(ArrivalUnit, IsPrintedAndGoesAwayWhereTheRateIsChanged) {
  const TempFolder folder;
  const std::string path = folder.write("t.jsonl", mooncake_rows({"0.5", "1.25", "61.114"}));
  std::ostringstream out;
  inspect(*trace_of("{file: " + path + "}"), out);
  EXPECT_THAT(out.str(),
              HasSubstr("remark         are the times in the right unit? 'timestamp' is read as milliseconds, and so 3 requests arrive "
                        "within 0.06061 s, 33 per s; if they are seconds, set 'arrival: {trace: {scale: 0.001}}'\n"));
  const InMemoryTrace scaled = trace_with(path, "arrival: {trace: {scale: 0.001}}");
  EXPECT_EQ(ns(scaled.at(2).arrival), 61'114'000'000);
  EXPECT_EQ(scaled.remark(), "");
  EXPECT_EQ(trace_with(path, "arrival: {poisson: {rate_per_s: 2}}").remark(), "");
  EXPECT_EQ(trace_with(path, "limit_requests: 2").remark(), "") << "a part says nothing of the trace's length";
}

TEST(ArrivalUnit, NoRemarkOnPublicAndShippedTraces) {
  const std::string samples = KVLAB_SOURCE_DIR "/traces/samples/";
  const std::vector<std::pair<std::string, std::string>> files{{samples + "azure_like.csv", ""},
                                                               {samples + "mooncake_like.jsonl.gz", ""},
                                                               {data_file("traces/azure_2023_conv.csv"), ""},
                                                               {data_file("traces/mooncake_conversation.jsonl"), "block_size: 512"}};
  for (const auto& [path, options] : files) {
    if (!std::filesystem::exists(path)) continue;
    EXPECT_EQ(trace_with(path, options).remark(), "") << path;
  }
}

TEST(LengthsOnly, RunWhereArrivalsAreGiven) {
  const std::pair<const char*, const char*> files[] = {
      {"azure.csv", "ContextTokens,GeneratedTokens\n3,1\n4,2\n"},
      {"burstgpt.csv", "Model,Request tokens,Response tokens,Total tokens,Log Type\nM,3,1,4,API log\nM,4,2,6,API log\n"},
      {"vidur.csv", "num_prefill_tokens,num_decode_tokens\n3,1\n4,2\n"},
      {"splitwise.csv", "prompt_size,token_size\n3,1\n4,2\n"},
      {"kvlab.csv", "prompt_tokens,output_tokens\n3,1\n4,2\n"},
      {"kvlab_with_an_empty_time.csv", "arrival_ns,prompt_tokens,output_tokens\n5,3,1\n,4,2\n"},
      {"kvlab.jsonl", "{\"prompt_tokens\":3,\"output_tokens\":1}\n{\"prompt_tokens\":4,\"output_tokens\":2}\n"},
      {"mooncake.jsonl", "{\"input_length\":3,\"output_length\":1}\n{\"input_length\":4,\"output_length\":2}\n"},
      {"servegen.jsonl",
       "{\"request_id\":0,\"type\":\"text\",\"input_length\":3,\"output_length\":1,\"duration\":14000}\n"
       "{\"request_id\":1,\"type\":\"text\",\"input_length\":4,\"output_length\":2,\"duration\":11630}\n"},
      {"dynamo.jsonl", "{\"input_tokens\":3,\"output_tokens\":1}\n{\"input_tokens\":4,\"output_tokens\":2}\n"},
      {"bailian.jsonl", "{\"chat_id\":1,\"input_length\":3,\"output_length\":1}\n{\"chat_id\":2,\"input_length\":4,\"output_length\":2}\n"},
      {"llmservingsim.jsonl", "{\"input_toks\":3,\"output_toks\":1}\n{\"input_toks\":4,\"output_toks\":2}\n"},
  };
  const TempFolder folder;
  for (const auto& [name, text] : files) {
    const std::string path = folder.write(name, text);
    const InMemoryTrace t = trace_with(path, "arrival: {constant: {rate_per_s: 4}}");
    ASSERT_THAT(each(t, &TraceRequest::prompt_tokens), ElementsAre(3, 4)) << name;
    EXPECT_EQ(to_s(t.at(1).arrival), 0.25) << name;
    EXPECT_EQ(trace_with(path, "arrival: {closed_loop: {concurrency: 2}}").closed_loop().concurrency, 2) << name;
    const std::string error = error_of([&] { trace_with(path); });
    const bool is_empty_field = std::string(name) == "kvlab_with_an_empty_time.csv";
    EXPECT_NE(error.find(is_empty_field ? "nothing found" : "'arrival: {poisson: {rate_per_s: 2}}'"), std::string::npos) << error;
  }
}

TEST(IgnoredColumns, HarmlessOnesAndThoseNamedAreCounted) {
  const TempFolder folder;
  const std::string csv = folder.write("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens,model,zone\n2024-01-01 00:00:00,3,1,m,eu\n");
  EXPECT_NE(error_of([&] { trace_with(csv); }).find(":1: unknown column 'zone'; known: "), std::string::npos);
  EXPECT_EQ(trace_with(csv, "ignore_columns: zone").skipped(), "2 columns ignored: model, zone");
  const std::string jsonl =
      folder.write("t.jsonl", R"({"timestamp":0,"type":"text","input_length":3,"output_length":1,"a":{"b":[1]},"c":null}
{"timestamp":5000,"input_length":3,"output_length":1,"a":2,"user_id":"x"}
)");
  EXPECT_EQ(trace_with(jsonl, "ignore_columns: 'a, c'").skipped(), "4 columns ignored: type, a, c, user_id");
  EXPECT_NE(error_of([&] { trace_with(jsonl, "ignore_columns: a"); }).find(":1: unknown column 'c'"), std::string::npos);
}

TEST(AzureReader, RequestsWithImagesAreSkippedAndDaysCounted) {
  const InMemoryTrace images = read_all(
      "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2025-05-10 00:00:00.009930+00:00,1,1456,87\n"
      "2025-05-10 00:00:00.009930+00:00,0,212,9\n2025-05-10 00:00:01+00:00,2,0,44\n");
  EXPECT_THAT(each(images, &TraceRequest::prompt_tokens), ElementsAre(212));
  EXPECT_EQ(images.skipped(), "2 requests with images, whose tokens the trace does not give");
  const InMemoryTrace days = read_all(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.9999999,100,10\n2023-11-17 00:00:00.0000001,100,10\n"
      "2024-02-29 12:00:00,100,10\n");
  EXPECT_EQ(std::tuple(ns(days.at(1).arrival), ns(days.at(2).arrival)), std::tuple(200, 9'028'800'000'000'100));
}

TEST(LlmServingSimReader, SessionsWithoutAnIdOrRequests) {
  const InMemoryTrace t = read_all(R"({"input_toks": 100, "output_toks": 5, "arrival_time_ns": 0}
{"arrival_time_ns": 1000, "sub_requests": [{"input_toks": 50, "output_toks": 5}, {"input_toks": 80, "output_toks": 5, "tool_duration_ns": 1}]}
{"arrival_time_ns": 1500, "sub_requests": []}
{"arrival_time_ns": 2000, "sub_requests": [{"input_toks": 70, "output_toks": 5}]}
)");
  ASSERT_EQ(t.size(), 4U);
  EXPECT_EQ(std::tuple(t.at(2).is_follow_up, t.at(2).session), std::tuple(true, t.at(1).session));
  EXPECT_GE(t.at(1).session, 0);
  EXPECT_NE(t.at(3).session, t.at(1).session);
  EXPECT_EQ(t.skipped(), "1 sessions with an empty sub_requests");
}

TEST(SpecialFiles, AreRefusedWithoutOpeningThem) {
  const TempFolder folder;
  const std::string pipe = folder.file("pipe.csv");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { trace_with(pipe); }), pipe + ": is a pipe; a trace file is expected: save it to one");
  EXPECT_EQ(error_of([&] { load_config(pipe, {}); }), pipe + ": is a pipe; a YAML file is expected: save it to one");
  EXPECT_EQ(error_of([] { open_trace("/dev/null"); }), "/dev/null: is a device; a trace file is expected");
}

}  // namespace
}  // namespace kvlab
