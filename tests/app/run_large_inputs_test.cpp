// Large inputs end in time, in memory, or in one line.
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>

#include "app/runs/kinds/run_kind.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

struct LargeInputsTest : AppTest {
  // Output of a run of three requests; its results are in results/NAME.
  static std::string output_of(const std::string& name, const std::string& model, const std::string& hardware, const std::string& parallel,
                               int prompt_tokens) {
    write(name + ".yaml", "name: " + name + "\nmodel: " + model + "\nhardware: " + hardware + "\nparallel: " + parallel +
                              "\ntrace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: " +
                              std::to_string(prompt_tokens) + ", output_tokens: 3}}\nscheduler: vllm_v1\n");
    return call_ok({"run", name + ".yaml", "--force"}).out;
  }
};

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
  EXPECT_THAT(read("err.txt"), HasSubstr("out of memory: 'replicas' = 100000 with 600 KV blocks each ('memory.num_blocks', given)"));
}

TEST_F(LargeInputsTest, StopsBesideTheSimulation) {
  const std::atomic<bool> stop{true};
  const auto stops = [&](const std::string& text) {
    const Experiment experiment = parse_experiment(text, "a.yaml", {});
    fs::create_directories("runs");
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
  call_ok({"run", "big.yaml", "--set", "timeline_interval_ms=0", "--set", "memory.num_blocks=" + blocks, "--quiet"});
  ::getrusage(RUSAGE_SELF, &after);
  if (!kLimitsMemory) GTEST_SKIP() << "the sanitizer takes memory of its own";
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 200 << 10);  // KiB
}

TEST_F(LargeInputsTest, DataParallelRanksAreARemark) {
  const auto run = [&](const std::string& parallel) { return output_of("moe", "mixtral-8x7b", "h100", parallel, 30); };
  const std::string remark = "makes 4 data-parallel ranks for attention";
  EXPECT_THAT(run("{tp: 2, ep: 8}"), HasSubstr(remark));
  EXPECT_THAT(read("results/moe/manifest.json"), HasSubstr(remark));
  EXPECT_THAT(run("{tp: 8, ep: 8}"), Not(HasSubstr("data-parallel")));
  EXPECT_THAT(run("{tp: 2, dp: 4, ep: 8}"), Not(HasSubstr("data-parallel"))) << "with schedulers of their own";
}

TEST_F(LargeInputsTest, ABalanceOfOneRankIsARemark) {
  const auto run = [&](const std::string& parallel) { return output_of("balance", "mixtral-8x7b", "h100", parallel, 30); };
  const std::string remark = "'load_balance_method' changes nothing with dp = 1";
  EXPECT_THAT(run("{tp: 2, load_balance_method: total_tokens}"), HasSubstr(remark));
  EXPECT_THAT(run("{tp: 2, dp: 2, load_balance_method: total_tokens}"), Not(HasSubstr(remark)));
  EXPECT_THAT(run("{tp: 2}"), Not(HasSubstr(remark)));
}

TEST_F(LargeInputsTest, CollectivesByTheDatasheetAreARemark) {
  const auto run = [&](const std::string& hardware) { return output_of("tp", "llama-3.1-8b", hardware, "{tp: 4}", 300); };
  EXPECT_THAT(run("a10"), testing::AllOf(testing::ContainsRegex("[0-9]+ % of step time is all_reduce over 4 ranks by the datasheet of A10"),
                                         HasSubstr("add them under 'collectives' in ")));
  const std::string measured = run("l40s");
  EXPECT_THAT(measured, Not(HasSubstr("by the datasheet")));
  EXPECT_THAT(measured, HasSubstr("all_reduce over 4 ranks by vllm "));
}

TEST_F(LargeInputsTest, AnUnknownNetworkBetweenMachinesIsARemark) {
  const auto run = [&](const std::string& hardware, const std::string& parallel, const std::string& model = "llama-3.1-70b") {
    return output_of("far", model, hardware, parallel, 300);
  };
  using ::testing::AllOf;
  EXPECT_THAT(run("b300", "{tp: 16}"), AllOf(HasSubstr("all_reduce over 16 ranks leaves a machine of 8 GPUs"), HasSubstr("b300.yaml"),
                                             HasSubstr("'network_bytes_per_s'"), HasSubstr("63 GB/s for each GPU")));
  EXPECT_THAT(run("b300", "{tp: 8, pp: 2}"), HasSubstr("p2p over 2 ranks leaves a machine of 8 GPUs"));
  EXPECT_THAT(run("b300", "{tp: 2, dp: 8, ep: 16}", "qwen3-235b-a22b"), HasSubstr("all_gather over 8 ranks"));
  EXPECT_THAT(run("b300", "{tp: 4, pp: 2}"), Not(HasSubstr("leaves a machine")));
  EXPECT_THAT(run("h100", "{tp: 16}"), Not(HasSubstr("leaves a machine"))) << "the card has a rate";
}

}  // namespace
}  // namespace kvlab
