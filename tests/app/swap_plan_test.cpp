// The keys of `memory` that set how KV is swapped.
#include "app/runs/plan/swap_plan.h"

#include "app/runs/plan/serving_plan.h"
#include "app/runs/sweep/experiment.h"
#include "base/csv.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

struct SwapPlan : AppTest {
  static MemorySetup memory_of(const std::string& memory) {
    const std::string text =
        "model: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\nmemory: " + memory +
        "\ntrace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: 30, output_tokens: 3}}\n";
    const Experiment experiment = parse_experiment(text, "a.yaml", {});
    Params p = experiment.params(experiment.runs.front());
    return read_serving_plan(p, 1).setup.memory;
  }
};

// 32 layers, 8 KV heads of 128 channels: in each K and V of a block 16 codes of a byte for a channel, with zero and scale in fp16.
TEST_F(SwapPlan, EightBitCopiesHaveZeroAndScaleOfEachChannelOfABlock) {
  const MemorySetup plain = memory_of("{host_memory_bytes: 1000000000}"),
                    eight = memory_of("{host_memory_bytes: 1000000000, swap_format: int8}");
  constexpr std::int64_t kRows = 32 * 2 * 8, kElements = kRows * 16 * 128;
  constexpr std::int64_t kEncoded = kRows * 128 * (16 + 4);
  EXPECT_EQ(plain.block_bytes, 2 * kElements);
  EXPECT_EQ(plain.copy_bytes(), 2 * kElements);
  EXPECT_EQ(eight.block_bytes, 2 * kElements) << "of the GPU";
  EXPECT_EQ(eight.num_blocks, plain.num_blocks);
  EXPECT_EQ(eight.copy_bytes(), kEncoded);
  EXPECT_EQ(plain.host_blocks, 1'000'000'000 / (2 * kElements));
  EXPECT_EQ(eight.host_blocks, 1'000'000'000 / kEncoded);
  const SwapCodec& codec = eight.swap.codec;
  EXPECT_EQ(codec.encode.name, "quantize");
  EXPECT_EQ(codec.decode.name, "dequantize");
  for (const PolicyOp& op : {codec.encode, codec.decode}) {
    EXPECT_EQ(op.launches, 64) << "K and V of each layer";
    EXPECT_EQ(op.bytes, 2 * kElements + kEncoded + 4 * kRows * 16) << "both forms, and the list of tokens";
    EXPECT_FALSE(op.over_host_link);
  }
  EXPECT_EQ(codec.encode.flops, 4 * kElements);
  EXPECT_EQ(codec.decode.flops, 2 * kElements);
}

// In larger blocks zero and scale weigh less.
TEST_F(SwapPlan, LargeBlocksTakeAboutHalf) {
  const MemorySetup memory = memory_of("{block_tokens: 128, swap_format: int8}");
  EXPECT_EQ(memory.copy_bytes() * 256, memory.block_bytes * 132);
}

TEST_F(SwapPlan, NothingChangesByDefault) {
  const SwapSetup swap = memory_of("{num_blocks: 100}").swap;
  EXPECT_EQ(swap.overlap, SwapSetup::Overlap::kNone);
  EXPECT_FALSE(swap.keeps_turns);
  EXPECT_FALSE(swap.codec.is_on());
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
  call_ok({"run", "a.yaml"});
  const CsvTable s = read_csv("results/a/summary.csv");
  ASSERT_EQ(s.rows.size(), 2U);
  for (const auto& row : s.rows) {
    EXPECT_EQ(row[s.at("completed")], "60");
    EXPECT_GT(std::stod(row[s.at("swaps")]), 5);
  }
  EXPECT_EQ(std::stod(s.rows[0][s.at("step_policy_frac")]), 0);
  EXPECT_GT(std::stod(s.rows[1][s.at("step_policy_frac")]), 0);
}

}  // namespace
}  // namespace kvlab
