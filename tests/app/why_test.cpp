// Parts of `kvlab why`: the phases of a request, the metrics, the changes that are tried, and what is said of runs of several kinds.
#include "app/why/why.h"

#include "app/results/run_folder.h"
#include "base/error.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

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
