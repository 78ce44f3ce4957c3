// KV blocks and scheduler limits that follow from the hardware, against logs of engines.

#include "app/runs/plan/serving_plan.h"
#include "app/runs/sweep/experiment.h"
#include "base/csv.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

using CapacityTest = AppTest;

ServingPlan plan_of(const std::string& hardware, const std::string& scheduler, const std::string& more = "") {
  const std::string text = "model: llama-3.1-8b\nhardware: " + hardware + "\nscheduler: " + scheduler + "\n" + more +
                           "trace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: 30, output_tokens: 3}}\n";
  const Experiment experiment = parse_experiment(text, "a.yaml", {});
  Params p = experiment.params(experiment.runs.front());
  return read_serving_plan(p, 1);
}

// vLLM 0.19 on an RTX 4090: 2,588 blocks (LLMServingSim's log). V0 on an RTX 3090: vllm#10517.
TEST_F(CapacityTest, DerivedBlocksAreThoseOfEngines) {
  struct Case {
    const char *hardware, *scheduler, *more;
    double blocks;
  };
  for (const Case& c :
       {Case{"rtx4090", "vllm_v1", "max_model_len: 32768\n", 2588},
        Case{"rtx4090", "{vllm_v1: {budget_tokens: 2048, max_num_seqs: 256}}", "", 2588},
        Case{"rtx3090", "vllm_v0", "max_model_len: 20000\n", 1952}, Case{"rtx3090", "vllm_v0", "max_model_len: 29000\n", 1478}}) {
    const MemorySetup memory = plan_of(c.hardware, c.scheduler, c.more).setup.memory;
    EXPECT_TRUE(memory.is_derived);
    EXPECT_NEAR(static_cast<double>(memory.num_blocks), c.blocks, 0.03 * c.blocks) << c.hardware << " " << c.more;
  }
}

TEST_F(CapacityTest, MoreTokensPerStepLeaveFewerBlocks) {
  const auto blocks = [](const std::string& limits) { return plan_of("h100", "{vllm_v1: " + limits + "}").setup.memory.num_blocks; };
  EXPECT_GT(blocks("{budget_tokens: 2048}"), blocks("{budget_tokens: 8192}"));
  EXPECT_GT(blocks("{max_num_seqs: 64}"), blocks("{max_num_seqs: 256}"));  // fewer graphs
  EXPECT_GT(blocks("{largest_graph_tokens: 0}"), blocks("{}"));
}

// As vllm/engine/arg_utils.py chooses; what is given wins.
TEST_F(CapacityTest, DefaultsOfVllmV1FollowTheGpu) {
  const auto limits = [](const std::string& hardware, const std::string& scheduler) {
    const StepBounds b = plan_of(hardware, scheduler).setup.make_scheduler()->step_bounds(2048);
    return std::pair(b.tokens, b.requests);
  };
  for (const char* small : {"rtx4090", "l40s", "a100-40gb", "a100-80gb", "a10"})
    EXPECT_EQ(limits(small, "vllm_v1"), std::pair(2048, 256)) << small;
  for (const char* large : {"h100", "h200", "rtxpro6000"}) EXPECT_EQ(limits(large, "vllm_v1"), std::pair(8192, 1024)) << large;
  EXPECT_EQ(limits("l40s", "{vllm_v1: {budget_tokens: 8192}}"), std::pair(8192, 256));
  EXPECT_EQ(limits("l40s", "{vllm_v1: {max_num_seqs: 1024}}"), std::pair(2048, 1024));
  EXPECT_EQ(limits("l40s", "sarathi"), limits("h100", "sarathi"));
}

// As sglang/srt/server_args.py chooses.
TEST_F(CapacityTest, DefaultsOfSglangFollowTheGpu) {
  const auto chunk = [](const std::string& hardware) {
    return plan_of(hardware, "{sglang: {max_num_seqs: 1}}").setup.make_scheduler()->step_bounds(2048).tokens;
  };
  EXPECT_EQ(chunk("a10"), 2048);
  EXPECT_EQ(chunk("l40s"), 4096);
  EXPECT_EQ(chunk("h100"), 8192);
  EXPECT_EQ(chunk("b200"), 16384);
}

// Without 'scheduler' the engine's own one plans.
TEST_F(CapacityTest, SglangIsTheSchedulerOfItsEngine) {
  const auto plan = [](const std::string& engine) {
    const Experiment experiment = parse_experiment(
        "model: llama-3.1-8b\nhardware: h100\nengine: " + engine +
            "\ntrace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: 30, output_tokens: 3}}\n",
        "a.yaml", {});
    Params p = experiment.params(experiment.runs.front());
    return read_serving_plan(p, 1);
  };
  const std::unique_ptr<Scheduler> own = plan("{sglang: {version: 0.5.9}}").setup.make_scheduler();
  EXPECT_EQ(own->step_bounds(2048).tokens, 8192);
  EXPECT_EQ(own->step_bounds(2048).requests, 4096);
  EXPECT_THROW(plan("{vllm: {version: 0.19.0}}"), InputError);
}

TEST_F(CapacityTest, LimitsInForceAreInTheSummary) {
  std::string small = kSmall;
  small.replace(small.find("h100"), 4, "l40s");
  write("small.yaml", small + "scheduler: [vllm_v1, sarathi, orca]\n");
  const Called called = call_ok({"run", "small.yaml"});
  for (const char* limits : {"2048 tokens, 256 sequences (run ", "512 tokens, 128 sequences (run ", "any tokens, 128 sequences (run "})
    EXPECT_THAT(called.out, HasSubstr(limits));
  const CsvTable summary = read_csv("results/small/summary.csv");
  EXPECT_EQ(summary.rows[0][summary.at("max_step_tokens")], "2048");
  EXPECT_EQ(summary.rows[2][summary.at("max_step_tokens")], "");
  EXPECT_THAT(read("results/small/runs/" + summary.rows[0][0] + "/resolved.yaml"),
              HasSubstr("#   scheduler.vllm_v1.budget_tokens: 2048\n"));
}

// Recipes that keep (nearly) nothing on the GPU: CPU memory or disk has a size, and a given number that fits stays.
TEST_F(CapacityTest, BlocksOfRecipesThatKeepNothingOnTheGpu) {
  for (const char* recipe : {"instinfer", "retrieval_attention", "retrieval_attention_hnsw", "sentencekv", "kivi2", "full"}) {
    const std::string policy = std::string("kv_policy: ") + recipe + "\n";
    const std::int64_t derived = plan_of("h100", "vllm_v1", policy).setup.memory.num_blocks;
    EXPECT_GT(derived, 20'000) << recipe;
    EXPECT_LT(derived, 1'000'000) << recipe;
    for (const std::int64_t given : {200, 32'768})
      EXPECT_EQ(plan_of("h100", "vllm_v1", policy + "memory: {num_blocks: " + std::to_string(given) + "}\n").setup.memory.num_blocks, given)
          << recipe;
  }
  const auto in_cpu = [](const std::string& bytes) {
    write("card.yaml", read(KVLAB_SOURCE_DIR "/profiles/hardware/h100.yaml") + "cpu_memory_bytes: " + bytes + "\n");
    return plan_of("card.yaml", "vllm_v1", "kv_policy: retrieval_attention\n").setup.memory.num_blocks;
  };
  const std::int64_t block = 16 * 131'072;
  EXPECT_NEAR(static_cast<double>(in_cpu("100000000000")), 1e11 / block, 1e11 / block * 0.01);
  EXPECT_NEAR(static_cast<double>(in_cpu("200000000000")), 2e11 / block, 2e11 / block * 0.01);
}

TEST_F(CapacityTest, MoreBlocksThanAPlaceHoldsAreRefused) {
  const auto error = [](const std::string& recipe) {
    return error_of([&] { plan_of("h100", "vllm_v1", "kv_policy: " + recipe + "\nmemory: {num_blocks: 1000000}\n"); });
  };
  EXPECT_THAT(error("full_offload"),
              testing::AllOf(HasSubstr("keeps 131072 bytes of a token in CPU memory, so 1000000 blocks need 2.097e+12 bytes there"),
                             HasSubstr("blocks fit; lower 'memory: {num_blocks: N}', leave it out, or raise 'cpu_memory_bytes' in")));
  EXPECT_THAT(error("instinfer"), HasSubstr("on disk, so 1000000 blocks need 3.146e+12 bytes there"));
  EXPECT_EQ(error("kivi2"), "no error");
}

TEST_F(CapacityTest, RequestsOfThoseRecipesAreServed) {
  write("few.yaml", std::string(kSmall) + "scheduler: vllm_v1\nkv_policy: [instinfer, retrieval_attention, sentencekv]\n");
  EXPECT_THAT(call_ok({"run", "few.yaml", "--set", "memory.num_blocks=32768", "--set", "trace.generate.requests=4"}).out,
              testing::Not(HasSubstr("rejected")));
}

}  // namespace
}  // namespace kvlab
