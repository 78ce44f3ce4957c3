// Large inputs end in time, in memory, or in one line.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>

#include "app/runs/run.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

using LargeInputsTest = AppTest;

#ifdef KVLAB_SANITIZED
constexpr bool kLimitsMemory = false;
#else
constexpr bool kLimitsMemory = true;
#endif

TEST_F(LargeInputsTest, OutOfMemoryNamesTheKeysAndTheSize) {
  if (!kLimitsMemory) GTEST_SKIP() << "the sanitizer takes memory of its own";
  write("big.yaml", std::string(kSmall) + "scheduler: vllm_v1\nreplicas: 100000\n");
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{200 << 20, 200 << 20};
    ::setrlimit(RLIMIT_DATA, &limit);
    const Called called = call({"run", "big.yaml", "--jobs", "1"});
    write("err.txt", called.err);
    _exit(called.status);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_THAT(read("err.txt"),
              testing::HasSubstr("out of memory: 'replicas' = 100000 with 600 KV blocks each ('memory.num_blocks', given)"));
}

// Whatever a run does before its own simulation can be stopped as well.
TEST_F(LargeInputsTest, StopsBesideTheSimulation) {
  const std::atomic<bool> stop{true};
  const auto stops = [&](const std::string& text) {
    const Experiment experiment = parse_experiment(text, "a.yaml", {});
    std::filesystem::create_directories("runs");
    RunKinds kinds;
    EXPECT_THROW(execute_run(kinds, {experiment, experiment.runs.front(), "runs", {}, [] {}}, {true, &stop, nullptr, {}, false}),
                 Interrupted)
        << text;
  };
  // No request fits, which is an error where the first simulation is not stopped.
  std::string small = kSmall;
  small.replace(small.find("max_model_len: 2048"), 19, "max_model_len: 100");
  stops(small + "scheduler: vllm_v1\nload_frac: 0.5\n");
  const std::string trace = "trace: {file: " KVLAB_SOURCE_DIR "/traces/samples/mooncake_like.jsonl.gz, block_size: 512}\n";
  stops("kind: block_cache_mrc\nblock_caches: lru\ncapacity_blocks: 100\n" + trace);
}

TEST_F(LargeInputsTest, ReplicasThatDoNothingTakeNoMemory) {
  // Conservation checks, which sanitized builds make after every event, look at each block of each replica.
  const std::string replicas = kLimitsMemory ? "4000" : "2", blocks = kLimitsMemory ? "1000000" : "1000";
  write("big.yaml", std::string(kSmall) + "scheduler: vllm_v1\nreplicas: " + replicas + "\n");
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  const Called called = call({"run", "big.yaml", "--set", "timeline_interval_ms=0", "--set", "memory.num_blocks=" + blocks, "--quiet"});
  EXPECT_EQ(called.status, 0) << called.err;
  ::getrusage(RUSAGE_SELF, &after);
  if (!kLimitsMemory) GTEST_SKIP() << "the sanitizer takes memory of its own";
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 200 << 10);  // KiB
}

TEST_F(LargeInputsTest, DataParallelRanksAreARemark) {
  const auto run = [&](const std::string& parallel) {
    write("moe.yaml", "name: moe\nmodel: mixtral-8x7b\nhardware: h100\nparallel: " + parallel +
                          "\ntrace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: {fixed: {value: 30}}, "
                          "output_tokens: {fixed: {value: 3}}}}\nscheduler: vllm_v1\n");
    const Called called = call({"run", "moe.yaml"});
    EXPECT_EQ(called.status, 0) << called.err;
    return called.out;
  };
  const std::string remark = "makes 4 data-parallel ranks for attention";
  EXPECT_THAT(run("{tp: 2, ep: 8}"), testing::HasSubstr(remark));
  EXPECT_THAT(read("results/moe/manifest.json"), testing::HasSubstr(remark));
  EXPECT_THAT(run("{tp: 8, ep: 8}"), testing::Not(testing::HasSubstr("data-parallel")));
  EXPECT_THAT(run("{tp: 2, dp: 4, ep: 8}"), testing::Not(testing::HasSubstr("data-parallel"))) << "with schedulers of their own";
}

TEST_F(LargeInputsTest, CollectivesByTheDatasheetAreARemark) {
  const auto run = [&](const std::string& hardware) {
    write("tp.yaml", "name: tp\nmodel: llama-3.1-8b\nhardware: " + hardware +
                         "\nparallel: {tp: 4}\ntrace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: {fixed: "
                         "{value: 300}}, output_tokens: {fixed: {value: 3}}}}\nscheduler: vllm_v1\n");
    const Called called = call({"run", "tp.yaml"});
    EXPECT_EQ(called.status, 0) << called.err;
    return called.out;
  };
  EXPECT_THAT(run("a10"), testing::AllOf(testing::ContainsRegex("[0-9]+ % of step time is all_reduce over 4 ranks by the datasheet of A10"),
                                         testing::HasSubstr("add them under 'collectives' in ")));
  const std::string measured = run("l40s");
  EXPECT_THAT(measured, testing::Not(testing::HasSubstr("by the datasheet")));
  EXPECT_THAT(measured, testing::HasSubstr("all_reduce over 4 ranks by vllm "));
}

}  // namespace
}  // namespace kvlab
