// The answer in the table: the limit that binds, rates per GPU, and searches over users, replicas and tensor parallelism.
#include "app/runs/kinds/simulation.h"
#include "app/runs/sweep/search.h"
#include "policies/scheduler/scheduler.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

constexpr std::int64_t kMs = 1'000'000;

// Two tokens and more: the first after `ttft_ms`, then one each `tpot_ms`.
RequestRecord answered(std::int64_t ttft_ms, std::int64_t tpot_ms) {
  RequestRecord r;
  r.outcome = Outcome::kCompleted;
  r.arrival = r.queued = r.scheduled = kStart;
  r.first_token = kStart + Span(ttft_ms * kMs);
  r.last_token = r.first_token + Span(4 * tpot_ms * kMs);
  r.prompt_tokens = 10;
  r.output_tokens = 5;
  return r;
}

// Limits 150 ms and 12 ms: the second misses TTFT, the third TPOT, the fourth both. So 1 of 4 attains.
TEST(Answer, FourRequestsByHand) {
  SloTarget limits = SloTarget::none();
  limits.ttft = Span(150 * kMs);
  limits.tpot = Span(12 * kMs);
  MetricsCollector metrics(Slo{limits}, kStart);
  metrics.add(answered(100, 10));
  metrics.add(answered(200, 10));
  metrics.add(answered(150, 20));
  metrics.add(answered(300, 20));
  const auto l = metrics.finish();
  EXPECT_EQ(std::tuple(l.judged, l.attained), std::tuple(4U, 1U));
  EXPECT_DOUBLE_EQ(l.slo_attainment_frac, 0.25);
  EXPECT_EQ(l.missed, (std::array<std::uint64_t, 4>{2, 2, 0, 0}));
  EXPECT_EQ(most_missed_limit(l), "ttft") << "the first of equals";
}

TEST(Answer, RejectedRequestsMissNoLimitAndCanBind) {
  SloTarget limits = SloTarget::none();
  limits.e2e = Span(130 * kMs);
  MetricsCollector metrics(Slo{limits}, kStart);
  metrics.add(answered(100, 10));  // 140 ms
  RequestRecord rejected;
  rejected.arrival = kStart;
  rejected.outcome = Outcome::kRejected;
  metrics.add(rejected);
  metrics.add(rejected);
  RequestRecord late = rejected;  // unfinished, and beyond its limit when the run stops
  late.outcome = Outcome::kUnfinished;
  metrics.add(late, kStart + Span(131 * kMs));
  late.arrival = kStart + Span(kMs);  // at its limit
  metrics.add(late, kStart + Span(131 * kMs));
  const auto l = metrics.finish();
  EXPECT_EQ(std::tuple(l.judged, l.missed, l.judged_rejected), std::tuple(4U, (std::array<std::uint64_t, 4>{0, 0, 0, 2}), 2U));
  EXPECT_EQ(most_missed_limit(l), "e2e");
  MetricsCollector none(Slo{limits}, kStart);
  none.add(answered(10, 1));
  EXPECT_EQ(most_missed_limit(none.finish()), "");
}

// There are 100 blocks; the scheduler runs at most 4 requests.
TEST(WaitWatch, CountsSamplesInWhichRequestsWait) {
  class FourAtMost final : public Scheduler {
    void plan(ReplicaView& /*view*/, StepPlan& /*plan*/) override {}
    [[nodiscard]] StepBounds step_bounds(std::int32_t /*longest*/) const override { return {4, 0}; }
  };
  HostSetup setup;
  setup.make_scheduler = [] { return std::make_unique<FourAtMost>(); };
  const auto after = [&](const std::vector<TimelineSample>& samples) {
    WaitWatch watch(setup, nullptr);
    for (const TimelineSample& sample : samples) watch.sample(sample);
    return watch.waits_for();
  };
  const auto sample = [](std::int64_t running, std::int64_t waiting, std::int64_t used) {
    TimelineSample s;
    s.running = running, s.waiting = waiting, s.used_blocks = used, s.cached_blocks = (100 - used) / 2;
    s.free_blocks = 100 - used - s.cached_blocks;
    return s;
  };
  EXPECT_EQ(after({}), "");
  EXPECT_EQ(after({sample(4, 0, 95)}), "") << "no request waits";
  EXPECT_EQ(after({sample(4, 1, 95)}), "request_slots");
  EXPECT_EQ(after({sample(3, 1, 91)}), "kv_memory");
  EXPECT_EQ(after({sample(3, 1, 90)}), "steps") << "a tenth is free";
  EXPECT_EQ(after({sample(3, 1, 90), sample(3, 2, 95), sample(2, 1, 99)}), "kv_memory");
}

struct AnswerRun : AppTest {
  // kSmall without its SLO.
  static std::string small() {
    std::string text = kSmall;
    const std::size_t slo = text.find("slo:");
    return text.erase(slo, text.find("timeline") - slo) + "scheduler: vllm_v1\n";
  }
  CsvTable run(const std::string& yaml) {
    write("e.yaml", yaml);
    called_ = call_ok({"run", "e.yaml", "--out", "out", "--force"});
    return read_csv("out/summary.csv");
  }
  Called called_;
};

TEST_F(AnswerRun, RatesPerGpu) {
  const CsvTable table = run(small() + "slo: {ttft_ms: 0.001, tpot_ms: 1000}\nreplicas: 2\nparallel: {tp: 4}\n");
  EXPECT_EQ(text(table, "gpus"), "8");
  EXPECT_NEAR(number(table, "requests_per_s_per_gpu"), number(table, "requests_per_s") / 8, 1e-6);
  EXPECT_NEAR(number(table, "output_tokens_per_s_per_gpu"), number(table, "output_tokens_per_s") / 8, 1e-6);
  EXPECT_EQ(number(table, "goodput_per_s_per_gpu"), 0);
  EXPECT_EQ(std::tuple(text(table, "binding_limit"), text(table, "slo_ttft_miss_frac"), text(table, "slo_tpot_miss_frac")),
            std::tuple("ttft", "1.000000", "0.000000"));
  EXPECT_THAT(called_.out, HasSubstr("binding"));
}

TEST_F(AnswerRun, WithoutAnSloNothingBinds) {
  const CsvTable table = run(small());
  for (const char* column : {"slo_ttft_miss_frac", "binding_limit", "goodput_per_s_per_gpu"}) EXPECT_EQ(text(table, column), "");
  EXPECT_EQ(text(table, "gpus"), "1");
}

// The printed table is at most 160 wide, and says what it leaves out.
TEST_F(AnswerRun, TheTableFits) {
  run(small() +
      "slo: {ttft_ms: 60, tpot_ms: 20}\nreplicas: [1, 2]\nprefix_caching: [true, false]\nsearch: {rate: [1, 500], tolerance_frac: 0.5}\n");
  std::istringstream lines(called_.out);
  std::string line, header;
  while (std::getline(lines, line)) {
    if (line.find("max_rate/s") != std::string::npos && header.empty()) header = line;
    if (!header.empty() && line.starts_with("also in summary.csv: ")) break;
    EXPECT_TRUE(header.empty() || line.size() <= 160U) << line;
  }
  EXPECT_TRUE(line.starts_with("also in summary.csv: ")) << called_.out;
  EXPECT_THAT(header, has_all({"attained", "binding", "tpot_p99_ms", "gpus"}));
}

// Every probe is in search.csv, and the result is the border between its neighbours.
TEST_F(AnswerRun, FindsTheFewestReplicas) {
  const CsvTable table = run(small() + "slo: {ttft_ms: 40}\nsearch: {replicas: [1, 16], at_rate_per_s: 120}\n");
  const CsvTable probes = read_csv("out/search.csv");
  const double best = number(table, "search_replicas");
  ASSERT_GT(best, 1);
  EXPECT_EQ(std::tuple(number(table, "gpus"), text(table, "search_rate_per_s")), std::tuple(best, ""));
  bool has_below = false;
  for (std::size_t r = 0; r < probes.rows.size(); ++r) {
    const double value = number(probes, "value", r);
    EXPECT_EQ(std::tuple(text(probes, "varied", r), text(probes, "rate_per_s", r), text(probes, "attains", r)),
              std::tuple("replicas", "", value >= best ? "1" : "0"));
    EXPECT_EQ(text(probes, "attains", r) == "1", number(probes, "slo_attainment_frac", r) >= 0.9);
    if (value != best - 1) continue;
    has_below = true;
    EXPECT_EQ(text(probes, "binding_limit", r), "ttft");
    EXPECT_EQ(text(table, "binding_limit"), "ttft") << "of the next tested number";
    EXPECT_EQ(text(table, "waits_for"), text(probes, "waits_for", r));
  }
  EXPECT_TRUE(has_below);
  EXPECT_GE(number(table, "slo_attainment_frac"), 0.9) << "the row is of the best";
}

TEST_F(AnswerRun, FindsTheMostUsers) {
  const CsvTable table = run(small() + "search: {concurrency: [1, 60], ramp_s: 0.1, ttft_p99_ms: 60, tpot_p50_ms: 100}\n");
  const double best = number(table, "search_concurrency");
  const CsvTable probes = read_csv("out/search.csv");
  ASSERT_GT(best, 1);
  ASSERT_LT(best, 60);
  EXPECT_LE(number(table, "ttft_p99_ms"), 60);
  EXPECT_EQ(text(probes, "slo_attainment_frac"), "") << "no request has a target";
  EXPECT_EQ(text(table, "binding_limit"), "ttft_p99_ms");
  for (std::size_t r = 0; r < probes.rows.size(); ++r)
    EXPECT_TRUE(number(probes, "value", r) != best + 1 || number(probes, "ttft_p99_ms", r) > 60) << r;
}

// The weights of the 70B model take 131 GiB: one H100 cannot hold them.
TEST_F(AnswerRun, FindsTheLeastTensorParallelism) {
  const CsvTable table =
      run("model: llama-3.1-70b\nhardware: h100\nscheduler: vllm_v1\ntrace: {generate: {requests: 5, arrival: {constant: {rate_per_s: 1}}, "
          "prompt_tokens: 200, output_tokens: 4}}\nparallel: {pp: 1}\nsearch: {tp: [1, 8], tpot_p50_ms: 15}\n");
  const CsvTable probes = read_csv("out/search.csv");
  ASSERT_EQ(probes.rows.size(), 4U);
  EXPECT_EQ(text(probes, "binding_limit"), "cannot run");
  EXPECT_THAT(text(probes, "refusal"), HasSubstr("does not fit"));
  double least = 0;
  for (std::size_t r = 4; r-- > 1;)
    if (text(probes, "refusal", r).empty() && number(probes, "tpot_p50_ms", r) <= 15) least = number(probes, "value", r);
  ASSERT_GT(least, 1);
  EXPECT_EQ(std::tuple(number(table, "search_tp"), number(table, "gpus")), std::tuple(least, least));
  EXPECT_LE(number(table, "tpot_p50_ms"), 15);
}

TEST_F(AnswerRun, RefusesKeysThatTheSearchSets) {
  const auto error = [&](const std::string& more) {
    write("bad.yaml", small() + more);
    return call({"run", "bad.yaml"}).err;
  };
  EXPECT_THAT(error("replicas: 2\nsearch: {replicas: [1, 4], ttft_p99_ms: 100}\n"), HasSubstr("leave 'replicas' out"));
  EXPECT_THAT(error("parallel: {tp: 2}\nsearch: {tp: [1, 4], ttft_p99_ms: 100}\n"), HasSubstr("leave 'tp' out of 'parallel'"));
  EXPECT_THAT(error("block_cache: belady\nsearch: {replicas: [1, 4], ttft_p99_ms: 100}\n"), HasSubstr("oracle block cache"));
  EXPECT_THAT(error("pools: {prefill: {}, decode: {}}\nsearch: {replicas: [1, 4], ttft_p99_ms: 100}\n"), HasSubstr("runs without pools"));
}

// Four users over two seconds: 0, 0.5, 1 and 1.5 s. Answers of 800 tokens take longer than that.
TEST_F(AnswerRun, UsersStartOverTheRamp) {
  run("model: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\ntrace: {generate: {requests: 6, arrival: {closed_loop: {concurrency: 4, "
      "ramp_s: 2}}, prompt_tokens: 100, output_tokens: 800}}\n");
  std::vector<double> arrivals = numbers_in(read_csv("out/requests.csv"), "arrival_ns");
  std::sort(arrivals.begin(), arrivals.end());
  ASSERT_EQ(arrivals.size(), 6U);
  arrivals.resize(4);
  EXPECT_EQ(arrivals, (std::vector<double>{0, 5e8, 1e9, 1.5e9}));
}

TEST_F(AnswerRun, SaysLimitsByDefaultAndUnequalOnes) {
  const std::string a100 =
      "model: llama-3.1-8b\nhardware: a100-80gb\ntrace: {generate: {requests: 3, arrival: {constant: {rate_per_s: 9}}, prompt_tokens: 20, "
      "output_tokens: 2}}\n";
  run(a100 + "scheduler: [vllm_v1, {sarathi: {budget_tokens: 512}}]\n");
  EXPECT_THAT(called_.out, has_all({"vllm_v1: budget_tokens 2048 and max_num_seqs 256 by default on A100",
                                    "differ in their most tokens per step as well (sarathi 512; vllm_v1 2048)"}));
  run(a100 + "scheduler: [{vllm_v1: {budget_tokens: 512, max_num_seqs: 64}}, {sarathi: {budget_tokens: [256, 512]}}]\n");
  EXPECT_THAT(called_.out, Not(HasSubstr("by default on")));
  EXPECT_THAT(called_.out, Not(HasSubstr("differ in their most tokens")));
}

// The counts in a results folder, and the conditions under which they are made again.

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
  EXPECT_EQ(value("requests"), value("completed"));
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
  EXPECT_THAT(column(requests, "state"), ElementsAre("rejected", "completed"));
  EXPECT_EQ(text(requests, "arrival_ns", 1), "2000000000");
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
