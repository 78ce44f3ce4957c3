#include "app/compare/compare.h"

#include <cmath>

#include "app/results/run_folder.h"
#include "app/runs/sweep/score_interval.h"
#include "app/why/why.h"
#include "base/error.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

TEST(PairedDifference, ByHand) {
  const PairedDifference d = paired_difference({10, 20, 30}, {11, 23, 32});  // differences 1, 3, 2: deviation 1
  EXPECT_DOUBLE_EQ(d.mean_a, 20);
  EXPECT_DOUBLE_EQ(d.mean, 2);
  EXPECT_NEAR(d.half_width, 4.303 / std::sqrt(3.0), 1e-9);
  EXPECT_TRUE(std::isinf(paired_difference({1}, {2}).half_width));
}

TEST(StudentT, Table) {
  EXPECT_DOUBLE_EQ(student_t_975(1), 12.706);
  EXPECT_DOUBLE_EQ(student_t_975(30), 2.042);
  EXPECT_NEAR(student_t_975(60), 2.000, 0.002);
  EXPECT_NEAR(student_t_975(10000), 1.960, 0.001);
}

struct CompareTest : AppTest {
  void folder(const std::string& name, const std::string& summary, const std::string& requests) {
    write(name + "/summary.csv", summary);
    write(name + "/requests.csv", requests);
  }
};

const std::string kColumns = "run,request,arrival_ns,first_token_ns,last_token_ns,state\n";

TEST_F(CompareTest, MatchesByAxesAndSeedAndShowsWhoMoved) {
  folder("a", "run,router,seed,ttft_mean_ms\n0001,x,1,100\n0002,x,2,110\n0003,y,1,50\n",
         kColumns + "0001,0,0,1000000,2000000,completed\n0001,1,0,1000000,9000000,completed\n0001,2,0,,,rejected\n");
  folder("b", "run,router,seed,ttft_mean_ms\n0001,x,2,121\n0002,x,1,110\n",
         kColumns + "0002,0,0,1000000,2500000,completed\n0002,1,0,1000000,4000000,completed\n");
  const Called called = call_ok({"compare", "a", "b"});
  EXPECT_THAT(called.out, HasSubstr("router=x - 2 pairs of runs"));
  EXPECT_THAT(called.out, Not(HasSubstr("router=y")));
  EXPECT_THAT(called.out, has_all({"ttft_mean_ms", "+10.00%"}));
  EXPECT_LT(called.out.find("\n      1  "), called.out.find("\n      0  ")) << called.out;  // request 1 moved by 5 ms, request 0 by 0.5
}

TEST_F(CompareTest, GradedAnswersMatchByTaskAndLength) {
  const std::string header = "run,kv_policy,seed,recipe,task,length,exact_match_frac\n";
  folder("a", header + "0001,full,1,full,niah,10,1\n0001,full,1,full,niah,20,0.5\n0001,full,1,full,copy,10,0.75\n", kColumns);
  folder("b", header + "0001,full,1,full,copy,10,0.25\n0001,full,1,full,niah,10,1\n", kColumns);
  const Called called = call_ok({"compare", "a", "b"});
  EXPECT_THAT(called.out, has_all({"kv_policy=full task=niah length=10 - 1 pair of runs",
                                   "kv_policy=full task=copy length=10 - 1 pair of runs", "-66.67%"}));
  EXPECT_THAT(called.out, Not(HasSubstr("length=20")));
}

TEST_F(CompareTest, OneSeedHasNoInterval) {
  folder("a", "run,seed,ttft_mean_ms\n0001,1,100\n", kColumns);
  folder("b", "run,seed,ttft_mean_ms\n0001,1,110\n", kColumns);
  const Called called = call({"compare", "a", "b"});
  EXPECT_THAT(called.out, HasSubstr("+10.00%"));
  for (const char* text : {"ci95", "interval"}) EXPECT_THAT(called.out, Not(HasSubstr(text)));
}

// By content, not by name: what else differs is said.
TEST_F(CompareTest, SaysWhatElseDiffers) {
  const auto make = [&](const std::string& name, const std::string& model, const std::string& trace, const std::string& limit) {
    folder(name, "run,seed,ttft_mean_ms,max_step_tokens\n" + name + "1,1,100," + limit + "\n", kColumns);
    write(name + "/runs/" + name + "1/manifest.json",
          R"({"model": ")" + model + R"(", "hardware": "H100", "inputs": {"hardware: h100": "1", )" + trace + "}}");
  };
  make("a", "llama-3.1-8b", R"("file: x.csv": "11")", "8192");
  make("b", "llama-3.1-8b", R"("file: copy_of_x.csv": "11")", "8192");
  make("c", "llama-3.1-70b", R"("file: x.csv": "22")", "2048");
  EXPECT_THAT(call({"compare", "a", "b"}).out, Not(HasSubstr("remark"))) << "the same trace under another name";
  const std::string out = call({"compare", "a", "c"}).out;
  EXPECT_THAT(out, has_all({"remark: the models differ (llama-3.1-8b and llama-3.1-70b)\n",
                            "remark: the contents of the trace files differ (x.csv 11 and x.csv 22)\n",
                            "remark: the most tokens per step differ (8192 and 2048)\n"}));
  EXPECT_THAT(out, Not(HasSubstr("GPUs")));
}

// Seeds that change nothing are one run: three equal pairs are no certainty.
TEST_F(CompareTest, EqualSeedsAreOne) {
  folder("a", "run,seed,ttft_mean_ms,preemptions\n1,1,100,7\n2,2,100,7\n3,3,100,7\n", kColumns);
  folder("b", "run,seed,ttft_mean_ms,preemptions\n1,1,110,7\n2,2,110,7\n3,3,110,7\n", kColumns);
  const Called alike = call({"compare", "a", "b"});
  EXPECT_THAT(alike.out, HasSubstr("1 pair of runs, the first of 3 that are alike: the seed changes nothing, n = 1"));
  for (const char* text : {"ci95", "*"}) EXPECT_THAT(alike.out, Not(HasSubstr(text)));
  // A metric that never varies has no interval, also where seeds differ.
  folder("b", "run,seed,ttft_mean_ms,preemptions\n1,1,110,8\n2,2,111,8\n3,3,112,8\n", kColumns);
  const Called called = call({"compare", "a", "b"});
  EXPECT_THAT(called.out, HasSubstr("3 pairs of runs\n"));
  const std::string row = called.out.substr(called.out.find("\npreemptions"));
  EXPECT_EQ(row.substr(0, row.find('\n', 1)).find_last_not_of(' '), row.find("+14.29%") + 6) << called.out;
}

TEST_F(CompareTest, RemarksOnOtherTraces) {
  const std::string summary = "run,seed,ttft_mean_ms\n1,1,100\n";
  const std::string columns = "run,request,session,arrival_ns,first_token_ns,last_token_ns,prompt_tokens,output_tokens,state\n";
  const auto row = [](int request, const std::string& session, int arrival, int prompt, int output) {
    return "1," + std::to_string(request) + "," + session + "," + std::to_string(arrival) + ",5,9," + std::to_string(prompt) + "," +
           std::to_string(output) + ",completed\n";
  };
  const std::tuple<std::string, std::string, std::string> cases[] = {
      // the last: the remark, or "" for none
      {row(0, "", 1, 10, 3), row(0, "", 1, 10, 3), ""},
      {row(0, "", 1, 10, 3), row(0, "", 1, 11, 3), "(1 and 1 requests)"},
      {row(0, "", 1, 10, 3), row(0, "", 1, 10, 4), "(1 and 1 requests)"},
      {row(0, "", 1, 10, 3) + row(1, "", 2, 10, 3), row(0, "", 1, 10, 3), "(2 and 1 requests)"},
      {row(0, "", 1, 10, 3), row(0, "", 2, 10, 3), "the same requests arrive at other times"},
      {row(0, "4", 1, 10, 3), row(0, "4", 2, 10, 3), ""},  // a session's turns arrive when the answers let them
  };
  for (const auto& [a, b, remark] : cases) {
    folder("a", summary, columns + a);
    folder("b", summary, columns + b);
    const std::string out = call({"compare", "a", "b"}).out;
    EXPECT_EQ(out.find("remark: the traces differ") != std::string::npos, !remark.empty()) << out;
    EXPECT_THAT(out, HasSubstr(remark));
  }
}

TEST_F(CompareTest, NothingMatches) {
  folder("a", "run,router,seed,ttft_mean_ms\n0001,x,1,100\n", kColumns);
  folder("b", "run,router,seed,ttft_mean_ms\n0001,y,1,100\n", kColumns);
  EXPECT_EQ(error_of_call({"compare", "a", "b"}), "kvlab: no run of a/summary.csv has the axes and seed of a run of b/summary.csv\n");
}

TEST_F(CompareTest, AnAxisThatOneLacks) {
  folder("a", "run,seed,ttft_mean_ms\n0001,1,100\n", kColumns);
  folder("b", "run,router,seed,ttft_mean_ms\n0001,x,1,100\n0002,y,1,90\n", kColumns);
  EXPECT_EQ(call({"compare", "a", "b"}).err,
            "kvlab: b/summary.csv: several runs match 'seed=1', since a/summary.csv has no axis 'router': choose one of its values, x, y, "
            "with --where router=x\n");
  EXPECT_EQ(call({"compare", "a", "b", "--where", "router=y"}).status, 0);
  EXPECT_THAT(call({"compare", "a", "b", "--where", "router=z"}).err, HasSubstr("no run has router = 'z'"));
  EXPECT_THAT(call({"compare", "a", "b", "--where", "roter=x"}).err, HasSubstr("neither folder has an axis 'roter'"));
}

TEST(ScoreInterval, ByHand) {
  const auto [low, high] = wilson_interval(6, 8);
  EXPECT_NEAR(low, 0.4093, 5e-5);
  EXPECT_NEAR(high, 0.9285, 5e-5);
  const std::tuple<PairedAnswers, double, double> cases[] = {
      // Nothing in common, all four answers lost: 0 of 4 is 0 to 0.4899, 4 of 4 is 0.5101 to 1; -1 + sqrt(0.4899^2 + 0.4899^2).
      {{0, 0, 4, 0}, -1, -0.3072},
      {{0, 4, 0, 0}, 0.3072, 1},
      // One answer: 0 of 1 is 0 to 0.7935, 1 of 1 is 0.2065 to 1.
      {{0, 0, 1, 0}, -1, 0.1221},
      {{1, 0, 0, 0}, -0.7935, 0.7935},
      {{0, 0, 0, 1}, -0.7935, 0.7935},
      // 10 of 20 with both: each share is 0.5 with 0.2993 to 0.7007, and the correlation is (100 - 10) / 100: 0.2007 * sqrt(0.2).
      {{10, 0, 0, 10}, -0.0898, 0.0898},
      // 12 of 20 is 0.3866 to 0.7812, 15 of 20 is 0.5313 to 0.8881; the correlation is (44 - 4 - 10) / sqrt(12 * 8 * 15 * 5) = 0.3536.
      {{11, 1, 4, 4}, -0.3592, 0.0794},
      // The correlation is negative, and not moved to 0: -24 / sqrt(48 * 2 * 38 * 12) = -0.1147.
      {{36, 12, 2, 0}, 0.0569, 0.3404}};
  for (const auto& [answers, least, most] : cases) {
    const auto [l, h] = paired_interval(answers);
    EXPECT_NEAR(l, least, 5e-5);
    EXPECT_NEAR(h, most, 5e-5);
  }
}

// Parts of `kvlab why`: the phases of a request, the metrics, the changes that are tried, and what is said of runs of several kinds.

using ::testing::Contains;

// Arrives at 10 ms, is taken at 14, has its first token at 20 and its sixth at 70.
RequestRow request() {
  RequestRow r;
  r.arrival_ns = 10'000'000, r.scheduled_ns = 14'000'000, r.first_token_ns = 20'000'000, r.last_token_ns = 70'000'000;
  r.output_tokens = 6, r.state = "completed";
  return r;
}

TEST(WhyParts, LatenciesByHand) {
  for (const auto& [family, ms] : {std::pair{WhyFamily::kTtft, 10}, {WhyFamily::kTpot, 10}, {WhyFamily::kE2e, 60}})
    EXPECT_DOUBLE_EQ(latency_ms(request(), family), ms);
  RequestRow one = request();
  one.output_tokens = 1;
  EXPECT_LT(latency_ms(one, WhyFamily::kTpot), 0);
  RequestRow lost = request();
  lost.state = "unfinished";
  EXPECT_LT(latency_ms(lost, WhyFamily::kE2e), 0);
  EXPECT_DOUBLE_EQ(latency_ms(lost, WhyFamily::kTtft), 10);
}

// queued, prefill, decode, preempted, transfer, policy; ns.
TEST(WhyParts, PhasesAddUpToTheLatency) {
  EXPECT_THAT(parts_of(request(), {}, WhyFamily::kTtft), ElementsAre(4e6, 6e6, 0, 0, 0, 0));
  EXPECT_THAT(parts_of(request(), {}, WhyFamily::kE2e), ElementsAre(4e6, 6e6, 50e6, 0, 0, 0));
  // A transfer from 20 to 25 ms, and a preemption from 23 to 33 ms, which goes first where both are.
  const std::vector<CutInterval> cuts{{TimePart::kTransfer, 20e6, 25e6}, {TimePart::kPreempted, 23e6, 33e6}};
  EXPECT_THAT(parts_of(request(), cuts, WhyFamily::kE2e), ElementsAre(4e6, 6e6, 37e6, 10e6, 3e6, 0));
  RequestRow with_policy = request();
  with_policy.prefill_policy_ns = 2e6, with_policy.decode_policy_ns = 5e6;
  EXPECT_THAT(parts_of(with_policy, {}, WhyFamily::kE2e), ElementsAre(4e6, 4e6, 45e6, 0, 0, 7e6));
}

TEST(WhyMetrics, NamesAndTails) {
  EXPECT_EQ(parse_why_metric("ttft").column, "ttft_p99_ms");
  EXPECT_EQ(parse_why_metric("tbt").column, "itl_p99_ms");
  EXPECT_DOUBLE_EQ(parse_why_metric("e2e_p90_ms").tail_frac, 0.1);
  EXPECT_DOUBLE_EQ(parse_why_metric("ttft_mean_ms").tail_frac, 1);
  EXPECT_TRUE(parse_why_metric("goodput").rises());
  EXPECT_FALSE(parse_why_metric("search_replicas").rises());
  EXPECT_THROW(static_cast<void>(parse_why_metric("ttft_p77_ms")), InputError);
}

std::vector<std::string> labels_of(const std::string& resolved, const CurrentLoad& load) {
  std::vector<std::string> labels;
  for (const Change& change : changes_of(parse_run_settings(resolved), SummaryRow(), parse_why_metric("ttft"), load))
    labels.push_back(change.label);
  return labels;
}

TEST(WhyChanges, AreThoseThatTheSettingsLeaveRoomFor) {
  const std::string open = "slo: {ttft_ms: 100}\ntrace: {generate: {arrival: {poisson: {rate_per_s: 8}}}}\n";
  EXPECT_THAT(labels_of(open, {8, false}), ElementsAre("2 replicas", "tp 2", "fp8 KV", "0.95 of GPU memory (now 0.9)", "a lower load"));
  EXPECT_THAT(labels_of(open, {8, true}), Contains("a higher load"));
  const std::string batch = "slo: {ttft_ms: 100}\ntrace: {file: t.jsonl}\n";
  EXPECT_THAT(labels_of(batch, {0, false}), Not(Contains("a lower load")));
  const std::string one_user = "slo: {ttft_ms: 100}\ntrace: {generate: {arrival: {closed_loop: {concurrency: 1}}}}\n";
  EXPECT_THAT(labels_of(one_user, {8, false}), Not(Contains("a lower load")));
  EXPECT_THAT(labels_of(one_user, {8, true}), Contains("a higher load"));
  EXPECT_THAT(labels_of("pools: {prefill: {replicas: 2}, decode: {replicas: 3}}\n", {0, false}),
              ::testing::IsSupersetOf({"3 replicas of prefill (now 2)", "4 replicas of decode (now 3)"}));
}

TEST(WhyChanges, ExpertsFollowTheRanks) {
  const std::vector<Change> changes =
      changes_of(parse_run_settings("parallel: {dp: 2, ep: 2}\n"), SummaryRow(), parse_why_metric("ttft"), {0, false});
  const auto tp = std::find_if(changes.begin(), changes.end(), [](const Change& c) { return c.label == "tp 2"; });
  ASSERT_NE(tp, changes.end());
  EXPECT_THAT(tp->set, ElementsAre("parallel.tp=2", "parallel.ep=4"));
}

struct WhyRuns : AppTest {
  // The text on a run with these settings changed, without tries.
  std::string why(const std::vector<std::string>& set, bool tries = false) {
    write("w.yaml",
          "name: w\nmodel: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\n"
          "trace: {generate: {requests: 30, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: 300, output_tokens: 20}}\n");
    std::vector<std::string> run{"run", "w.yaml", "--quiet", "--out", "o" + std::to_string(++count_)};
    for (const std::string& one : set) run.insert(run.end(), {"--set", one});
    call_ok(run);
    return call_ok({"why", run[4]}, tries ? std::vector<std::string>{} : std::vector<std::string>{"--no-try"}).out;
  }

 private:
  int count_ = 0;
};

TEST_F(WhyRuns, TextsOfSeveralKinds) {
  EXPECT_THAT(why({}), HasSubstr("; of all 30: "));
  EXPECT_THAT(why({"trace.generate.arrival={closed_loop: {concurrency: 4}}"}), HasSubstr("of all 30: "));
  EXPECT_THAT(why({"parallel.dp=2", "replicas=2"}), HasSubstr("Time of the slowest request: "));
  EXPECT_THAT(why({"pools={prefill: {replicas: 1}, decode: {replicas: 1}}"}), HasSubstr("Time of the slowest request: "));
  EXPECT_THAT(why({"seeds=3"}), HasSubstr("Seed 1 of 3 is explained; P99 TTFT over all is "));
  const std::string swept = why({"seeds=2", "scheduler=[vllm_v1, sarathi]"});
  EXPECT_THAT(swept, has_all({"Best of 2: ", "Seed 1 of 2 is explained"}));
}

TEST_F(WhyRuns, RunsWithoutALatencySayWhy) {
  EXPECT_THAT(why({"max_model_len=200"}), HasSubstr("No request has such a latency. None of the 30 requests completed, 30 were rejected."));
  write("m.yaml",
        "kind: block_cache_mrc\nblock_caches: [lru]\ncapacity_blocks: [4]\ntrace: {generate: {requests: 6, arrival: {poisson: {rate_per_s: "
        "20}}, prompt_tokens: 100, output_tokens: 6, shared_prefix: {num_groups: 2, tokens: 32}}}\n");
  call_ok({"run", "m.yaml", "--quiet", "--out", "m"});
  EXPECT_THAT(error_of_call({"why", "m"}), HasSubstr("is no run that serves requests, so there is no latency to explain"));
}

// Nothing can raise a rate that is the largest of its range.
TEST_F(WhyRuns, ASearchAtTheEndOfItsRangeTriesNothing) {
  const std::string text = why({"search={rate: [1, 4]}", "slo={ttft_ms: 10000}"}, true);
  EXPECT_THAT(text, HasSubstr("4/s is the largest value of the range that was searched"));
  for (const char* other : {"No effect", "Tried"}) EXPECT_THAT(text, Not(HasSubstr(other)));
}

}  // namespace
}  // namespace kvlab
