// KV blocks and scheduler limits that follow from the hardware, against logs of engines.
#include "app/runs/plan/serving_plan.h"
#include "app/runs/sweep/experiment.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

using CapacityTest = AppTest;

ServingPlan plan_with(const std::string& lines) {
  const std::string rest = "trace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: 30, output_tokens: 3}}\n";
  const Experiment experiment = parse_experiment("model: llama-3.1-8b\n" + lines + rest, "a.yaml", {});
  Params p = experiment.params(experiment.runs.front());
  return read_serving_plan(p, 1);
}

ServingPlan plan_of(const std::string& hardware, const std::string& scheduler, const std::string& more = "") {
  return plan_with("hardware: " + hardware + "\nscheduler: " + scheduler + "\n" + more);
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
  for (const auto& [gpu, tokens] : {std::pair{"a10", 2048}, {"l40s", 4096}, {"h100", 8192}, {"b200", 16384}}) EXPECT_EQ(chunk(gpu), tokens);
  const StepBounds own = plan_with("hardware: h100\nengine: {sglang: {version: 0.5.9}}\n").setup.make_scheduler()->step_bounds(2048);
  EXPECT_EQ(std::tuple(own.tokens, own.requests), std::tuple(8192, 4096));
  EXPECT_THROW(plan_with("hardware: h100\nengine: {vllm: {version: 0.19.0}}\n"), InputError);
}

TEST_F(CapacityTest, LimitsInForceAreInTheSummary) {
  std::string small = kSmall;
  small.replace(small.find("h100"), 4, "l40s");
  write("small.yaml", small + "scheduler: [vllm_v1, sarathi, orca]\n");
  EXPECT_THAT(call_ok({"run", "small.yaml"}).out,
              has_all({"2048 tokens, 256 sequences (run ", "512 tokens, 128 sequences (run ", "any tokens, 128 sequences (run "}));
  const CsvTable summary = read_csv("results/small/summary.csv");
  EXPECT_EQ(std::tuple(text(summary, "max_step_tokens"), text(summary, "max_step_tokens", 2)), std::tuple("2048", ""));
  EXPECT_THAT(read("results/small/runs/" + summary.rows[0][0] + "/resolved.yaml"),
              HasSubstr("#   scheduler.vllm_v1.budget_tokens: 2048\n"));
}

// Recipes that keep (nearly) nothing on the GPU: CPU memory or disk has a size, and a given number that fits stays.
TEST_F(CapacityTest, RecipesThatKeepNothingOnTheGpuHaveBlocksAndServe) {
  for (const char* recipe : {"instinfer", "retrieval_attention", "retrieval_attention_hnsw", "sentencekv", "kivi2", "full"}) {
    const std::string policy = std::string("kv_policy: ") + recipe + "\n";
    const std::int64_t derived = plan_of("h100", "vllm_v1", policy).setup.memory.num_blocks;
    EXPECT_TRUE(derived > 20'000 && derived < 1'000'000) << recipe << " " << derived;
    for (const std::int64_t given : {200, 32'768})
      EXPECT_EQ(plan_of("h100", "vllm_v1", policy + "memory: {num_blocks: " + std::to_string(given) + "}\n").setup.memory.num_blocks, given)
          << recipe;
  }
  const auto in_cpu = [](const std::string& bytes) {
    write("card.yaml", read(KVLAB_SOURCE_DIR "/profiles/hardware/h100.yaml") + "cpu_memory_bytes: " + bytes + "\n");
    return plan_of("card.yaml", "vllm_v1", "kv_policy: retrieval_attention\n").setup.memory.num_blocks;
  };
  const std::int64_t block = 16 * 131'072;
  for (const auto& [bytes, number] : {std::pair{"100000000000", 1e11}, {"200000000000", 2e11}})
    EXPECT_NEAR(static_cast<double>(in_cpu(bytes)), number / block, number / block * 0.01);
  write("few.yaml", std::string(kSmall) + "scheduler: vllm_v1\nkv_policy: [instinfer, retrieval_attention, sentencekv]\n");
  EXPECT_THAT(call_ok({"run", "few.yaml", "--set", "memory.num_blocks=32768", "--set", "trace.generate.requests=4"}).out,
              Not(HasSubstr("rejected")));
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

// ---- the keys of `memory` that set how KV is swapped

MemorySetup memory_of(const std::string& memory) {
  return plan_with("hardware: h100\nscheduler: vllm_v1\nmemory: " + memory + "\n").setup.memory;
}

using SwapPlan = AppTest;

// 32 layers, 8 KV heads of 128 channels: in each K and V of a block 16 codes of a byte for a channel, with zero and scale in fp16.
TEST_F(SwapPlan, EightBitCopiesHaveZeroAndScaleOfEachChannelOfABlock) {
  const MemorySetup plain = memory_of("{host_memory_bytes: 1000000000}"),
                    eight = memory_of("{host_memory_bytes: 1000000000, swap_format: int8}");
  constexpr std::int64_t kRows = 32 * 2 * 8, kElements = kRows * 16 * 128;
  constexpr std::int64_t kEncoded = kRows * 128 * (16 + 4);
  EXPECT_EQ(std::tuple(plain.block_bytes, plain.copy_bytes()), std::tuple(2 * kElements, 2 * kElements));
  EXPECT_EQ(eight.block_bytes, 2 * kElements) << "of the GPU";
  EXPECT_EQ(std::tuple(eight.num_blocks, eight.copy_bytes()), std::tuple(plain.num_blocks, kEncoded));
  EXPECT_EQ(std::tuple(plain.host_blocks, eight.host_blocks), std::tuple(1'000'000'000 / (2 * kElements), 1'000'000'000 / kEncoded));
  const SwapCodec& codec = eight.swap.codec;
  EXPECT_EQ(std::tuple(codec.encode.name, codec.decode.name), std::tuple("quantize", "dequantize"));
  for (const PolicyOp& op : {codec.encode, codec.decode}) {
    EXPECT_EQ(op.launches, 64) << "K and V of each layer";
    EXPECT_EQ(op.bytes, 2 * kElements + kEncoded + 4 * kRows * 16) << "both forms, and the list of tokens";
    EXPECT_FALSE(op.over_host_link);
  }
  EXPECT_EQ(std::tuple(codec.encode.flops, codec.decode.flops), std::tuple(4 * kElements, 2 * kElements));
}

// In larger blocks zero and scale weigh less.
TEST_F(SwapPlan, LargeBlocksTakeAboutHalfAndNothingChangesByDefault) {
  const MemorySetup memory = memory_of("{block_tokens: 128, swap_format: int8}");
  EXPECT_EQ(memory.copy_bytes() * 256, memory.block_bytes * 132);
  const SwapSetup swap = memory_of("{num_blocks: 100}").swap;
  EXPECT_EQ(swap.overlap, SwapSetup::Overlap::kNone);
  EXPECT_FALSE(swap.keeps_turns || swap.codec.is_on());
}

// Requests under `alise` that swap: the steps hold the work of the copies, and remarks name the settings that a policy makes useless.
TEST_F(SwapPlan, RunsChargeTheCopies) {
  write("a.yaml", R"(
model: llama-3.1-8b
hardware: h100
scheduler: {vllm_v1: {async_scheduling: false, max_num_seqs: 8}}
order: {alise: {swap_ahead_blocks: 16}}
memory: {num_blocks: 200, swap_format: [same, int8], swap_overlap: adaptive}
trace: {generate: {requests: 60, arrival: {poisson: {rate_per_s: 40}}, prompt_tokens: 300, output_tokens: {uniform: {min: 10, max: 200}}}}
timeline_interval_ms: 0
)");
  const CsvTable s = summary_after({"a.yaml"});
  ASSERT_EQ(s.rows.size(), 2U);
  for (const auto& row : s.rows) {
    EXPECT_EQ(row[s.at("completed")], "60");
    EXPECT_GT(std::stod(row[s.at("swaps")]), 5);
  }
  EXPECT_EQ(number(s, "step_policy_frac"), 0);
  EXPECT_GT(number(s, "step_policy_frac", 1), 0);
}

}  // namespace
}  // namespace kvlab
