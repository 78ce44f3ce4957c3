// Formats whose files hold whole sessions: written by hand from the formats' definitions.
#include "tests/traces/trace_test_files.h"
#include "traces/block_hashes.h"

namespace kvlab {
namespace {

constexpr const char* kWekaSession = R"({
  "id": "trace_0103", "models": ["a"], "hash_id_scope": "local", "tool_tokens": 7, "system_tokens": 8,
  "requests": [
    {"t": 0.0, "type": "s", "model": "a", "in": 130, "out": 10, "hash_ids": [1, 2], "input_types": ["text"], "output_types": ["text"],
     "stop": "tool_use", "api_time": 2.0, "ttft": 0.5, "think_time": 0.0},
    {"t": 0.0, "type": "s", "model": "a", "in": 130, "out": 10, "hash_ids": [1, 2], "api_time": 2.0},
    {"t": 5.0, "type": "subagent", "agent_id": "agent_001", "subagent_type": "Explore", "duration_ms": 4000, "status": "completed",
     "models": ["a"], "requests": [
       {"t": 0.5, "type": "n", "model": "a", "in": 64, "out": 3, "hash_ids": [9], "api_time": 1.0},
       {"t": 1.0, "type": "n", "model": "a", "in": 65, "out": 3, "hash_ids": [9, 8], "api_time": 1.0}]},
    {"t": 1000.0, "type": "s", "model": "a", "in": 200, "out": 20, "hash_ids": [1, 2, 3], "api_time": 1.5, "think_time": 4.5}
  ],
  "block_size": 64
}
)";

TEST(WekaReader, ASessionIsOneChainInOrderOfStarts) {
  const InMemoryTrace t = read_all(kWekaSession, without_arrivals());
  ASSERT_EQ(t.size(), 4U);
  EXPECT_EQ(std::tuple(t.at(0).prompt_tokens, t.at(0).is_follow_up), std::tuple(130, false));
  EXPECT_TRUE(t.at(1).is_follow_up);
  EXPECT_EQ(to_s(t.at(1).delay), 3.5) << "5 + 0.5 s, relative to the subagent, minus the end at 2 s";
  EXPECT_EQ(to_s(t.at(2).delay), 0) << "it overlapped the call before";
  EXPECT_EQ(to_s(t.at(3).delay), 300) << "1000 - 7 s, capped";
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(t.at(i).session, t.at(0).session);
  EXPECT_EQ(t.at(3).facts->turn, 3);
  EXPECT_EQ(std::tuple(t.at(1).facts->request_class.text(), t.at(3).facts->request_class.text()), std::tuple("subagent", "agent"));
  EXPECT_EQ(std::tuple(t.at(0).hashes[1], t.at(1).hashes[0]), std::tuple(t.at(3).hashes[1], t.at(2).hashes[0]));
  EXPECT_EQ(t.skipped(), "1 duplicate requests dropped; 1 pauses cut to 300 s");
  EXPECT_EQ(t.remark(),
            "1 of 4 requests overlapped others of their session when recorded (1 of them of subagents), and follow them here: a session is "
            "one chain");
  EXPECT_EQ(t.at(0).hashes.size(), 2U) << "130 tokens, of which the ids cover 128";
  EXPECT_EQ(num_block_hashes(t.at(0), 64), 2U);
  EXPECT_EQ(t.at(3).prompt_tokens, 200);
  EXPECT_EQ(num_block_hashes(t.at(3), 64), 3U);
}

TEST(WekaReader, TimesOfSubagentsDelaysAndCaps) {
  const InMemoryTrace absolute = read_all(kWekaSession, without_arrivals(), "{subagent_times: absolute, idle_cap_s: 7, delays: gaps}");
  EXPECT_EQ(absolute.at(1).facts->request_class.text(), "subagent") << "at 0.5 s, inside of the first call";
  EXPECT_EQ(std::tuple(to_s(absolute.at(1).delay), to_s(absolute.at(3).delay)), std::tuple(0, 7));
  const std::string of_agentx = R"({"id":"a","block_size":64,"requests":[{"t":0,"type":"s","in":10,"out":1,"hash_ids":[1]},)"
                                R"({"t":4,"type":"subagent","requests":[{"t":4.5,"type":"s","in":10,"out":1,"hash_ids":[2]}]}]})";
  EXPECT_EQ(to_s(read_all(of_agentx, without_arrivals()).at(1).delay), 4.5) << "none is earlier than the subagent: absolute";
  EXPECT_EQ(to_s(read_all(of_agentx, without_arrivals(), "subagent_times: relative").at(1).delay), 8.5);
  const InMemoryTrace none = read_all(kWekaSession, without_arrivals(), "{delays: none, subagents: false}");
  ASSERT_EQ(none.size(), 2U);
  EXPECT_EQ(to_s(none.at(1).delay), 0);
  EXPECT_EQ(none.skipped(), "1 duplicate requests dropped; 2 requests of subagents left out");
}

TEST(WekaReader, IdsAreLocalToASession) {
  const auto session = [](const std::string& id, const std::string& scope) {
    return R"({"id":")" + id + R"(","block_size":64,"hash_id_scope":")" + scope +
           R"(","requests":[{"t":0,"type":"s","in":64,"out":1,"hash_ids":[1]}]})";
  };
  const InMemoryTrace local = read_all(session("a", "local") + "\n" + session("b", "local"), without_arrivals());
  ASSERT_EQ(local.size(), 2U);
  EXPECT_NE(local.at(0).hashes[0], local.at(1).hashes[0]);
  EXPECT_NE(local.at(0).session, local.at(1).session);
  const InMemoryTrace global = read_all(session("a", "global") + "\n" + session("b", "global"), without_arrivals());
  EXPECT_EQ(global.at(0).hashes[0], global.at(1).hashes[0]);
}

TEST(WekaReader, AFolderOfSessionsInAClosedLoop) {
  const TempFolder folder;
  folder.write("traces/trace_0002.json", kWekaSession);
  folder.write("traces/trace_0001.json", R"({"id":"first","block_size":64,"requests":[{"t":0,"type":"n","in":7,"out":1,"hash_ids":[]}]})");
  folder.write("traces/notes.txt", "no trace");
  const InMemoryTrace t(trace_of("{file: " + folder.file("traces") + ", arrival: {closed_loop: {concurrency: 2}}}"));
  ASSERT_EQ(t.size(), 5U);
  EXPECT_EQ(t.at(0).prompt_tokens, 7);
  EXPECT_EQ(t.closed_loop().concurrency, 2);
  const std::string agentx = "{file: " + folder.file("traces") + ", arrival: {closed_loop: {concurrency: 2, idle_cap_s: 10}}}";
  EXPECT_EQ(to_s(trace_of(agentx)->closed_loop().idle_cap), 10);
  EXPECT_EQ(to_s(InMemoryTrace(trace_of(agentx)).closed_loop().idle_cap), 10);
  EXPECT_EQ(t.closed_loop().idle_cap, Span{0});
  const std::string text = error_of([&] { trace_of("file: " + folder.file("traces")); });
  EXPECT_NE(text.find("give arrivals, for example"), std::string::npos) << text;
}

TEST(WekaReader, MessagesNameTheLineInsideOfADocument) {
  std::string text = kWekaSession;
  text.replace(text.find("\"in\": 64"), 8, "\"in\": -4");
  EXPECT_EQ(error_of([&] { read_all(text, without_arrivals()); }),
            "f:9: column 'in': '-4' is not a whole number from 0 to 1073741823; mend or remove the request");
  text = kWekaSession;
  text.replace(text.find("\"stop\""), 6, "\"stpo\"");
  EXPECT_THAT(error_of([&] { read_all(text, without_arrivals()); }), HasSubstr("f:5: unknown column 'stpo'; did you mean 'stop'?"));
}

TEST(AgenticMooncakeReader, AChainWaitsForDelayAndTool) {
  const InMemoryTrace t = read_all(
      R"({"request_id":"r1","session_id":"s","timestamp":1000,"input_length":100,"output_length":5,"hash_ids":[1,2],"wait_for":[],"prefix_reset":false}
{"request_id":"r2","session_id":"s","wait_for":["r1"],"delay":50,"tool_wait_ms":200.5,"input_length":150,"output_length":6,"hash_ids":[1,2,3],"branches":[],"tool_events":[{"name":"x"}]}
{"request_id":"r3","session_id":"t","timestamp":1500,"input_length":10,"output_length":6})",
      {}, "block_size: 64");
  ASSERT_EQ(t.size(), 3U);
  EXPECT_EQ(to_s(t.at(0).arrival), 1);
  EXPECT_EQ(std::tuple(t.at(1).is_follow_up, to_ms(t.at(1).delay)), std::tuple(true, 250.5));
  EXPECT_EQ(t.at(0).session, t.at(1).session);
  EXPECT_NE(t.at(0).session, t.at(2).session);
  EXPECT_EQ(t.at(1).facts->turn, 1);
  EXPECT_EQ(t.at(0).hashes[0], t.at(1).hashes[0]);
}

TEST(AgenticMooncakeReader, IsNamedWhereTheFirstRowIsOfMooncakeToo) {
  const std::string rows = R"({"request_id":"a","timestamp":0,"input_length":1,"output_length":5}
{"request_id":"b","wait_for":["a"],"input_length":3,"output_length":5})";
  EXPECT_THAT(error_of([&] { read_all(rows); }),
              HasSubstr(":2: column 'wait_for': rows of agents have this column; set 'format: agentic_mooncake'"));
  EXPECT_TRUE(read_all(rows, {}, "format: agentic_mooncake").at(1).is_follow_up);
}

constexpr const char* kRowsInAnyOrder = R"({"request_id":"c","wait_for":["b"],"delay":1,"input_length":3,"output_length":5,"hash_ids":[1]}
{"request_id":"b","wait_for":["a","a"],"delay":2,"input_length":2,"output_length":5,"hash_ids":[2]}
{"request_id":7,"session_id":null,"wait_for":null,"timestamp":10,"input_length":9,"output_length":5,"hash_ids":null}
{"request_id":"a","timestamp":20,"input_length":1,"output_length":5,"hash_ids":[3]}
{"request_id":"d","wait_for":[7],"delay":3,"input_length":8,"output_length":5,"request_kind":"main"}
)";

TEST(AgenticMooncakeReader, RowsOfChainsMayComeInAnyOrderWithSort) {
  const TempFolder folder;
  const std::string path = folder.write("any.jsonl", kRowsInAnyOrder);
  const InMemoryTrace t(trace_of("{file: " + path + ", sort: true, block_size: 16}"));
  EXPECT_THAT(each(t, &TraceRequest::prompt_tokens), ElementsAre(9, 8, 1, 2, 3)) << "two chains, in order of their starts";
  EXPECT_EQ(std::tuple(to_ms(t.at(3).delay), to_ms(t.at(4).delay)), std::tuple(2, 1));
  EXPECT_EQ(std::tuple(t.at(4).facts->turn, t.at(4).session), std::tuple(2, t.at(2).session));
  EXPECT_TRUE(t.at(0).hashes.empty());
  EXPECT_NE(t.at(3).hashes[0], t.at(4).hashes[0]);
  EXPECT_EQ(error_of([&] { InMemoryTrace(trace_of("{file: " + path + ", block_size: 16}")); }),
            path +
                ":1: column 'wait_for': 'b' is the request_id of no row above; set 'sort: true' if its row comes later (loads the whole "
                "trace)");
}

TEST(AgenticMooncakeReader, RowsThatNothingStartsStopWithTheirLine) {
  const auto refused = [](const std::string& rows) {
    const TempFolder folder;
    const std::string path = folder.write("a.jsonl", R"({"request_id":"a","wait_for":[],"timestamp":0,"input_length":1,"output_length":5})"
                                                     "\n" +
                                                         rows);
    const std::string message = error_of([&] { InMemoryTrace(trace_of("{file: " + path + ", sort: true}")); });
    return message.substr(message.find(":", path.size()));
  };
  const auto row = [](const std::string& id, const std::string& before) {
    return R"({"request_id":")" + id + R"(","wait_for":[")" + before + R"("],"input_length":1,"output_length":5})" + "\n";
  };
  EXPECT_EQ(refused(row("b", "x")), ":2: column 'wait_for': 'x' is the request_id of no row");
  EXPECT_EQ(refused(row("b", "c") + row("c", "b")),
            ":2: column 'wait_for': 'c' waits for this row in turn, or for others that wait in a circle");
  EXPECT_EQ(refused(row("c", "b") + row("d", "b") + row("b", "a")),
            ":3: column 'wait_for': 'c' of line 2 waits for 'b' as well; a session that forks (a DAG) is not simulated yet, chains are");
}

TEST(MooncakeReader, PromptsWithoutALengthAreAsLongAsTheirIds) {
  const InMemoryTrace t = read_all(R"({"timestamp":5,"output_length":4,"hash_ids":["x","y"]}
{"timestamp":6,"output_length":4.0,"hash_ids":["x"],"input_length":64.0,"session_id":null})",
                                   {}, "block_size: 64");
  EXPECT_EQ(std::tuple(t.at(0).prompt_tokens, t.at(0).hashes[0]), std::tuple(128, t.at(1).hashes[0]));
  EXPECT_LT(t.at(1).session, 0);
  EXPECT_EQ(error_of([] { read_all(R"({"timestamp":5,"output_length":4,"hash_ids":[1]})"); }),
            "f:1: column 'hash_ids': tokens per hash id unknown: set 'block_size' (512 in the traces that Mooncake published; 64, 256 and "
            "others occur)");
}

TEST(MooncakeReader, TimesSince1970CountFromTheFirstRow) {
  const auto row = [](const std::string& at) { return R"({"timestamp":)" + at + R"(,"input_length":9,"output_length":5})" + "\n"; };
  const std::string rows = row("1777312800000") + row("1777312800500.25");
  const InMemoryTrace t = read_all(rows);
  EXPECT_EQ(t.at(0).arrival, kStart);
  EXPECT_EQ(to_ms(t.at(1).arrival - kStart), 500.25);
  EXPECT_NE(t.remark().find("times are instants since 1970"), std::string::npos) << t.remark();
  EXPECT_EQ(error_of([&] { read_all(row("0") + row("1777312800000")); }),
            "f:2: column 'timestamp': a time beyond ten years, or since 1970, where that of the first row is not");
}

TEST(MooncakeDeltaReader, RowsAddToThePromptOfTheTurnBefore) {
  const InMemoryTrace t = read_all(R"({"session_id":"s","timestamp":0,"input_length":100,"output_length":5,"hash_ids":[1,2]}
{"session_id":"u","timestamp":1,"input_length":100,"output_length":5,"hash_ids":[1,7]}
{"session_id":"u","delay":100,"input_length":64,"output_length":6,"hash_ids":[3]}
{"session_id":"s","timestamp":2,"input_length":64,"output_length":6,"hash_ids":[3]})",
                                   {}, "{format: mooncake_delta, block_size: 64}");
  EXPECT_THAT(each(t, &TraceRequest::prompt_tokens), ElementsAre(100, 100, 164, 164));
  EXPECT_TRUE(t.at(2).is_follow_up);
  EXPECT_EQ(t.at(3).facts->turn, 1);
  ASSERT_EQ(t.at(3).hashes.size(), 2U) << "164 tokens are two full blocks, the second of parts of the ids 2 and 3";
  EXPECT_EQ(std::tuple(t.at(3).hashes[0], t.at(1).hashes[0]), std::tuple(t.at(0).hashes[0], t.at(0).hashes[0]));
  EXPECT_NE(t.at(3).hashes[1], t.at(2).hashes[1]) << "the same addition after other tokens is another prefix";
}

TEST(AppliedComputeReader, TurnsGrowByAnswersAndToolOutputs) {
  const std::string row =
      R"({"num_turns":2,"input_prompt_length":4096,"assistant_response_length":[128,96],"tool_call_output_length":[512,256],)"
      R"("tool_call_latency":[1.4,0.8],"final_assistant_response_length":64})";
  const InMemoryTrace t = read_all(row + "\n" + row, without_arrivals());
  ASSERT_EQ(t.size(), 6U);
  EXPECT_EQ(std::tuple(t.at(1).prompt_tokens, t.at(2).prompt_tokens), std::tuple(4096 + 128 + 512, 4096 + 128 + 512 + 96 + 256));
  EXPECT_EQ(std::tuple(t.at(0).output_tokens, t.at(2).output_tokens), std::tuple(128, 64));
  EXPECT_EQ(std::tuple(ns(t.at(1).delay), ns(t.at(2).delay)), std::tuple(1'400'000'000, 800'000'000));
  EXPECT_FALSE(t.at(3).is_follow_up);
  EXPECT_EQ(t.at(1).hashes[263], t.at(0).hashes[263]) << "prompt and answer, 4224 tokens, return";
  EXPECT_NE(t.at(3).hashes[0], t.at(0).hashes[0]) << "sessions share nothing";
}

constexpr const char* kTalks = R"([
  {"id": "x", "conversations": [
    {"from": "human", "value": "twelve chars"}, {"from": "gpt", "value": "eight \ud83d\ude00 "},
    {"from": "human", "value": "four"}, {"from": "gpt", "value": "\"broken\" \ud83d"}]},
  {"id": "y", "conversations": [{"from": "gpt", "value": "unasked"}]},
  {"id": "z", "conversations": [{"from": "system", "value": "abcd"}, {"from": "user", "value": "efgh"}, {"from": "assistant", "value": "i"}]}
])";

TEST(ShareGptReader, AnswersAreRequestsOfEstimatedLengths) {
  const InMemoryTrace t = read_all(kTalks, without_arrivals(), "{chars_per_token: 4, block_tokens: 1, turn_pause_s: 3}");
  EXPECT_THAT(each(t, &TraceRequest::prompt_tokens), ElementsAre(3, 3 + 2 + 1, 2));
  EXPECT_EQ(t.at(0).output_tokens, 2) << "eight characters, one of them outside of the basic plane";
  EXPECT_EQ(t.at(1).output_tokens, 3) << "ten characters, the broken one included";
  EXPECT_EQ(to_s(t.at(1).delay), 3);
  EXPECT_EQ(t.at(0).hashes[4], t.at(1).hashes[4]);
  EXPECT_EQ(t.skipped(), "1 answers without a question passed over; 1 conversations without an answered question passed over");
  EXPECT_NE(t.remark().find("token counts are estimates, 4 characters each"), std::string::npos);
}

TEST(ShareGptReader, SystemPromptsToolsAndCallsAreRead) {
  const std::string talk = R"([{"conversations":[{"from":"human","value":"abcd"},{"from":"function_call","value":"efgh"},)"
                           R"({"from":"observation","value":"ijklmnop"},{"from":"gpt","value":"qrst"}],)"
                           R"("system":"12345678","tools":[{"name": "f"}]}])";
  const InMemoryTrace t = read_all(talk, without_arrivals(), "{chars_per_token: 4, block_tokens: 1}");
  EXPECT_THAT(each(t, &TraceRequest::prompt_tokens), ElementsAre(2 + 4 + 1, 7 + 1 + 2)) << "system, [{\"name\": \"f\"}], question";
  EXPECT_EQ(t.at(0).hashes[7], t.at(1).hashes[7]);
}

TEST(ShareGptReader, OpenAiMessagesAreTheSame) {
  const InMemoryTrace t = read_all(R"({"messages":[{"role":"user","content":"abcd"},{"role":"assistant","content":null},)"
                                   R"({"role":"tool","content":"efgh"},{"role":"assistant","content":"ijkl","weight":1}]})",
                                   without_arrivals());
  EXPECT_THAT(each(t, &TraceRequest::prompt_tokens), ElementsAre(2));
  EXPECT_EQ(t.skipped(), "1 empty answers passed over; 1 messages without text taken as empty");
}

TEST(ShareGptReader, ATokenizerCountsTheTexts) {
  ReaderOptions options = without_arrivals();
  std::vector<std::string> texts;
  options.count_tokens = [&](std::string_view text) {
    texts.emplace_back(text);
    return static_cast<std::int32_t>(text.size());
  };
  const InMemoryTrace t = read_all(kTalks, options);
  EXPECT_EQ(t.at(0).prompt_tokens, 12);
  EXPECT_EQ(std::tuple(texts[1], texts[3]), std::tuple("eight \xf0\x9f\x98\x80 ", "\"broken\" \xef\xbf\xbd"));
  EXPECT_EQ(t.remark(), "");
}

// Pauses between the requests of Weka sessions, computed by hand from the definition: 't' is the start, 'api_time' the service time.

InMemoryTrace weka_of(const std::string& requests, const std::string& own = "{}") {
  static std::string text;  // outlives the reader
  text = R"({"id":"s","models":[],"block_size":64,"hash_id_scope":"local","requests":[)" + requests + "]}";
  return read_all(text, without_arrivals(), own);
}

// The agent runs 0-2 s and 5-6 s, its subagent 10-14 s and 16-18 s, a subagent of that 15-15.5 s, and the agent again from 20 s.
constexpr const char* kTree =
    R"({"t":0,"type":"s","in":10,"out":1,"api_time":2,"think_time":0},{"t":5,"type":"n","in":11,"out":1,"api_time":1,"think_time":3},)"
    R"({"t":10,"type":"subagent","agent_id":"a","duration_ms":null,"status":"async_launched","requests":[)"
    R"({"t":10,"type":"s","in":12,"out":1,"api_time":4,"think_time":0},)"
    R"({"t":15,"type":"subagent","agent_id":"b","requests":[{"t":15,"type":"s","in":13,"out":1,"api_time":0.5,"think_time":0}]},)"
    R"({"t":16,"type":"s","in":14,"out":1,"api_time":2,"think_time":2}]},)"
    R"({"t":20,"type":"s","in":15,"out":1,"api_time":1,"think_time":14})";

std::vector<double> pauses_of(const InMemoryTrace& t) {
  std::vector<double> pauses;
  for (std::size_t i = 1; i < t.size(); ++i) pauses.push_back(to_s(t.at(i).delay));
  return pauses;
}

TEST(WekaPauses, AreWhatIsLeftBetweenTheCallsOfAllAgents) {
  const InMemoryTrace t = weka_of(kTree);
  EXPECT_EQ(pauses_of(t), (std::vector<double>{5 - 2, 10 - 6, 15 - 14, 0.5, 20 - 18}));
  EXPECT_EQ(t.at(3).prompt_tokens, 13) << "a subagent of a subagent";
  EXPECT_EQ(t.at(3).facts->request_class.text(), "subagent");
  EXPECT_EQ(t.remark(), "") << "nothing overlapped";
  EXPECT_EQ(pauses_of(weka_of(kTree, "delays: think_time")), (std::vector<double>{3, 0, 0, 0.5, 2}))
      << "of the 2 s and 14 s before the last calls of the agents, others ran all but 0.5 and 2 s";
  const InMemoryTrace alone = weka_of(kTree, "subagents: false");
  EXPECT_EQ(pauses_of(alone), (std::vector<double>{3, 14}));
  EXPECT_EQ(alone.skipped(), "3 requests of subagents left out");
}

TEST(WekaPauses, ThinkTimesOfDaysAreCut) {
  const std::string day = R"({"t":0,"type":"s","in":9,"out":1,"api_time":2,"think_time":0},)"
                          R"({"t":78640,"type":"s","in":9,"out":1,"api_time":1,"think_time":78638})";
  for (const char* delays : {"gaps", "think_time"}) {
    const InMemoryTrace t = weka_of(day, std::string("delays: ") + delays);
    EXPECT_EQ(to_s(t.at(1).delay), 300) << delays;
    EXPECT_EQ(t.skipped(), "1 pauses cut to 300 s") << delays;
    EXPECT_EQ(to_s(weka_of(day, std::string("{idle_cap_s: 1e6, delays: ") + delays + "}").at(1).delay), 78638) << delays;
  }
}

TEST(WekaPauses, ADuplicateHasNoPause) {
  const std::string twice = R"({"t":0,"type":"s","in":9,"out":1,"api_time":2},{"t":4,"type":"s","in":9,"out":2,"api_time":2},)"
                            R"({"t":4,"type":"n","in":9,"out":2,"api_time":2},{"t":7,"type":"s","in":9,"out":1,"api_time":2})";
  const InMemoryTrace t = weka_of(twice);
  EXPECT_EQ(pauses_of(t), (std::vector<double>{2, 1}));
  EXPECT_EQ(t.skipped(), "1 duplicate requests dropped");
}

TEST(WekaPauses, WithoutApiTimeTheyContainAServiceTimeWhichIsCounted) {
  const InMemoryTrace t = weka_of(R"({"t":0,"type":"s","in":9,"out":1,"api_time":null},{"t":4,"type":"s","in":9,"out":1},)"
                                  R"({"t":4.05,"type":"s","in":8,"out":1},{"t":7,"type":"s","in":9,"out":1,"api_time":1})");
  EXPECT_EQ(to_s(t.at(1).delay), 4);
  EXPECT_EQ(t.skipped(), "3 pauses that contain the service time of the request before, whose 'api_time' is missing");
}

TEST(WekaPauses, OverlapsOfTheAgentItselfAreCountedBeyondTheRoundingOfStarts) {
  const InMemoryTrace t = weka_of(R"({"t":0,"type":"s","in":9,"out":1,"api_time":5.04},{"t":5,"type":"s","in":9,"out":1,"api_time":5},)"
                                  R"({"t":7,"type":"s","in":9,"out":1,"api_time":1})");
  EXPECT_EQ(t.remark(),
            "1 of 3 requests overlapped others of their session when recorded (0 of them of subagents), and follow them here: a session is "
            "one chain");
}

TEST(WekaPauses, TimesThatAreRoundedBelowTheSubagentsStartAreAbsolute) {
  const std::string rounded = R"({"t":22.4,"type":"subagent","requests":[{"t":22.35,"type":"s","in":9,"out":1,"api_time":1},)"
                              R"({"t":25,"type":"s","in":9,"out":2,"api_time":1}]})";
  EXPECT_NEAR(to_s(weka_of(rounded).at(1).delay), 25 - 23.35, 1e-9);
}

TEST(WekaReader, RequestsWithoutPromptAreCountedAndOddOnesStop) {
  const InMemoryTrace t = weka_of(R"({"t":0,"type":"s","in":9,"out":1,"hash_ids":null},{"t":1,"type":"s","in":0,"out":1,"hash_ids":[]})");
  EXPECT_EQ(std::tuple(t.size(), t.skipped()), std::tuple(1U, "1 requests without prompt or output tokens passed over"));
  EXPECT_THAT(error_of([] { weka_of(R"({"t":0,"type":"x","in":9,"out":1})"); }),
              HasSubstr("'type': 'x' is neither 's' (streaming), 'n' nor"));
  EXPECT_THAT(error_of([] { weka_of(R"({"t":0,"type":"s","in":9})"); }), HasSubstr("column 'out': missing"));
}

TEST(WekaReader, OtherModelsAreRemarkedOn) {
  const std::string one = R"({"t":0,"model":"opus","in":9,"out":1},{"t":1,"model":"opus","in":8,"out":1})";
  EXPECT_EQ(weka_of(one).remark(), "");
  EXPECT_EQ(weka_of(one + R"(,{"t":2,"model":"haiku","in":8,"out":1})").remark(), "requests to 2 models, which one model serves here");
}

TEST(WekaReader, IdsOf64BitsAndTextsAreToldApart) {
  const InMemoryTrace t =
      weka_of(R"({"t":0,"type":"s","in":64,"out":1,"hash_ids":[9007199254740992]},{"t":1,"type":"s","in":64,"out":1,)"
              R"("hash_ids":[9007199254740993]},{"t":2,"type":"s","in":64,"out":1,"hash_ids":["a1"]},{"t":3,"type":"s","in":64,"out":1,)"
              R"("hash_ids":["a2"]},{"t":4,"type":"s","in":64,"out":1,"hash_ids":["a1"]})");
  EXPECT_NE(t.at(0).hashes[0], t.at(1).hashes[0]) << "as doubles they would be equal";
  EXPECT_NE(t.at(2).hashes[0], t.at(3).hashes[0]);
  EXPECT_EQ(t.at(2).hashes[0], t.at(4).hashes[0]);
}

TEST(WekaReader, SessionsMayBeTheElementsOfAList) {
  const std::string list = R"([{"id":"a","requests":[{"t":0,"in":9,"out":1}]},{"id":"b","requests":[{"t":0,"in":8,"out":1}]}])";
  EXPECT_EQ(read_all(list, without_arrivals()).size(), 2U);
}

}  // namespace
}  // namespace kvlab
