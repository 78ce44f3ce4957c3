// Pauses between the requests of Weka sessions, computed by hand from the definition: 't' is the start, 'api_time' the service time.
#include "tests/traces/trace_test_files.h"

namespace kvlab {
namespace {

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
