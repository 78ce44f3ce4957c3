// The counts in a results folder, and the conditions under which they are made again.
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

struct Accounting : AppTest {
  Accounting() {
    write("steady.yaml",
          "name: steady\nmodel: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\n"
          "trace: {generate: {requests: 100, arrival: {constant: {rate_per_s: 5}}, prompt_tokens: 100, output_tokens: 8}}\n");
  }
  static Called run(const std::vector<std::string>& more) { return call({"run", "steady.yaml", "--out", "out"}, more); }
  double value(const std::string& column, std::size_t row = 0) { return number(read_csv("out/summary.csv"), column, row); }
};

TEST_F(Accounting, AWarmUpDoesNotLowerThroughput) {
  ASSERT_EQ(run({}).status, 0);
  const double whole = value("requests_per_s");
  ASSERT_EQ(run({"--set", "warmup_ms=10000"}).status, 0);
  EXPECT_LT(value("completed"), 60);
  EXPECT_NEAR(value("requests_per_s"), whole, 0.05 * whole);
}

// With 1.7 s all requests arrive during the warm-up, and their outputs end after it.
TEST_F(Accounting, ASearchThatCannotJudgeIsRefused) {
  const std::string early = "'warmup_ms': at 60 requests per second all of them arrive during the warm-up";
  const std::pair<const char*, std::string> cases[] = {
      {"warmup_ms=20000", early},
      {"warmup_ms=1700", early},
      {"stop={after_s: 0.001}", "'stop': at 1 requests per second it cuts every request off"}};
  for (const auto& [set, message] : cases) {
    const Called called = run({"--set", set, "--set", "slo={ttft_ms: 1000}", "--set", "search={rate: [1, 60]}"});
    EXPECT_NE(called.status, 0) << set;
    EXPECT_THAT(called.err, HasSubstr(message)) << set;
  }
}

// From the second request on, each finds the prefix that all share.
TEST_F(Accounting, CountsAndHitsAreOfWhatComesAfterTheWarmUp) {
  ASSERT_EQ(run({"--set", "warmup_ms=4000"}).status, 0);
  EXPECT_LT(value("requests"), 100);
  EXPECT_EQ(value("requests"), value("completed"));
}

TEST_F(Accounting, ALoadOfZeroIsTheTracesOwnInASweepToo) {
  const Called called = run({"--set", "load_frac=[0, 0.5]", "--set", "warmup_ms=1000"});
  ASSERT_EQ(called.status, 0) << called.err;
  EXPECT_EQ(text(read_csv("out/summary.csv"), "capacity_per_s"), "");
  EXPECT_GT(value("capacity_per_s", 1), 5);
}

TEST_F(Accounting, RejectedRequestsAreNamed) {
  const Called called = run({"--set", "max_model_len=50"});
  EXPECT_THAT(called.out, HasSubstr("not served (run " + run_id("out") + "): 100 of 100 requests were rejected; the first: "));
  EXPECT_THAT(read(run_folder("out") / "manifest.json"), HasSubstr("\"not_served\": \"100 of 100 requests were rejected"));
}

TEST_F(Accounting, AFollowUpOfARejectedTurnArrivesAllTheSame) {
  write("t.csv", "arrival_ns,prompt_tokens,output_tokens,session,delay_ns\n0,900,10,1,\n,10,5,1,2000000000\n");
  ASSERT_EQ(run({"--set", "max_model_len=500", "--set", "trace={file: t.csv}"}).status, 0);
  const CsvTable requests = read_csv("out/requests.csv");
  ASSERT_EQ(requests.rows.size(), 2U);
  EXPECT_EQ(text(requests, "state"), "rejected");
  EXPECT_EQ(std::tuple(text(requests, "state", 1), text(requests, "arrival_ns", 1)), std::tuple("completed", "2000000000"));
}

TEST_F(Accounting, OtherValuesOfVariablesAndOtherFilesAreOtherInputs) {
  const std::string rate = "trace.generate.arrival.constant.rate_per_s=${KVLAB_TEST_RATE}";
  ::setenv("KVLAB_TEST_RATE", "5", 1);
  ASSERT_EQ(run({"--set", rate}).status, 0);
  const double slow = value("duration_s");
  ::setenv("KVLAB_TEST_RATE", "50", 1);
  ASSERT_EQ(run({"--set", rate}).status, 0);
  EXPECT_LT(value("duration_s"), slow / 2);
  ::unsetenv("KVLAB_TEST_RATE");
  const std::string rows = "arrival_ns,prompt_tokens,output_tokens\n0,10,2\n";
  for (const auto& [text, requests] : {std::pair{rows + "5,10,2\n", 2}, {rows, 1}}) {
    write("mytrace", text);
    ASSERT_EQ(run({"--set", "trace={file: mytrace, format: kvlab_csv}"}).status, 0);
    EXPECT_EQ(value("requests"), requests);
  }
}

TEST_F(Accounting, AClosedLoopIsNoTraceToWrite) {
  write("loop.yaml", "trace: {generate: {requests: 4, arrival: {closed_loop: {concurrency: 2}}, prompt_tokens: 9, output_tokens: 2}}\n");
  const Called called = call({"trace", "generate", "loop.yaml", "loop.csv"});
  EXPECT_NE(called.status, 0);
  EXPECT_THAT(called.err, HasSubstr("a closed loop"));
  EXPECT_FALSE(fs::exists("loop.csv"));
}

}  // namespace
}  // namespace kvlab
