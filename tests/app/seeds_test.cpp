#include "app/runs/sweep/chosen_runs.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

struct SeedsTest : AppTest {
  // Number of runs that are left of three seeds, and the remark.
  static std::pair<std::size_t, std::string> left_of(const std::string& changes) {
    write("trace.csv", "arrival_ns,prompt_tokens,output_tokens\n0,100,5\n1000000000,120,6\n1500000000,90,4\n");
    write("lengths.csv", "num_prefill_tokens,num_decode_tokens\n100,5\n120,6\n");
    Experiment experiment = parse_experiment("model: llama-3.1-8b\nhardware: h100\nseeds: 3\n" + changes, "e.yaml", {});
    std::string remark = drop_idle_seeds(experiment);
    return {experiment.runs.size(), remark};
  }
};

TEST_F(SeedsTest, WhatIsRandomKeepsItsSeeds) {
  const std::string file = "trace: {file: trace.csv}\n", vllm = "scheduler: vllm_v1\n";
  const std::vector<std::pair<std::string, std::size_t>> cases = {
      {vllm + file, 1},
      {"scheduler: [vllm_v0, vllm_v1]\n" + file, 2},
      {vllm + "trace: {file: trace.csv, jitter_ms: 5}\n", 3},
      {vllm + "trace: {file: trace.csv, jitter_ms: [0, 5]}\n", 4},
      {vllm + "trace: {file: lengths.csv, arrival: {poisson: {rate_per_s: 2}}}\n", 3},
      {vllm + "replicas: 2\nrouter: random\n" + file, 3},
      {vllm + "replicas: 1\nrouter: random\n" + file, 1},  // there is nothing to draw from
      {vllm + "replicas: 2\nrouter: [power_of_two, round_robin]\n" + file, 4},
      {vllm + "kv_policy: {recipe: kivi2}\n" + file, 1},
      {"scheduler: {first_skip: {skip_frac: 0.3}}\n" + file, 3},  // layers are drawn
      {vllm + "search: {replicas: [1, 4], ttft_p99_ms: 100}\nrouter: random\n" + file, 3},
      {vllm + "search: {replicas: [1, 4], ttft_p99_ms: 100}\n" + file, 1},
      {vllm + "trace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: 30, output_tokens: 3}}\n", 3},
  };
  for (const auto& [text, count] : cases) EXPECT_EQ(left_of(text).first, count) << text;
}

TEST_F(SeedsTest, TheRemarkNamesConfigurations) {
  const std::string file = "trace: {file: trace.csv}\nscheduler: vllm_v1\n";
  EXPECT_EQ(
      left_of(file).second,
      "note: seeds change nothing in these runs: their requests are recorded and no dispatcher draws. They are done once, so n = 1\n");
  EXPECT_THAT(left_of(file + "replicas: 2\nrouter: [random, round_robin]\n").second,
              HasSubstr("in 1 of 2 configurations (router=round_robin): "));
  EXPECT_EQ(left_of(file + "replicas: 2\nrouter: random\n").second, "");
}

TEST_F(SeedsTest, ARunSaysSoAndHasOneRow) {
  left_of("trace: {file: trace.csv}\nscheduler: vllm_v1\n");  // writes the trace
  write("e.yaml", "model: llama-3.1-8b\nhardware: h100\nseeds: 3\nscheduler: vllm_v1\ntrace: {file: trace.csv}\n");
  const Called called = call_ok({"run", "e.yaml"});
  EXPECT_EQ(called.out.find("note: seeds change nothing"), 0U) << called.out;
  EXPECT_EQ(read_csv("results/e/summary.csv").rows.size(), 1U);
}

}  // namespace
}  // namespace kvlab
