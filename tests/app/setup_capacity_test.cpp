// KV blocks and scheduler limits that follow from the hardware, against logs of engines.
#include "app/runs/plan/engine_flags.h"
#include "app/runs/plan/serving_plan.h"
#include "app/runs/sweep/experiment.h"
#include "base/config/advice.h"
#include "base/config/config_file.h"
#include "base/config/spec_file.h"
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

using ::testing::Contains;
using ::testing::IsEmpty;

struct EngineFlagsTest : AppTest {
  EngineFlagsTest() { write("exp.yaml", std::string(kSmall) + "scheduler: vllm_v1\n"); }
  static EngineFlags vllm(const std::string& text, const std::vector<std::string>& set = {}) {
    return read_engine_flags("vllm", text, "exp.yaml", set);
  }
  static EngineFlags sglang(const std::string& text) { return read_engine_flags("sglang", text, "exp.yaml", {"scheduler=sglang"}); }
};

TEST_F(EngineFlagsTest, OptionsOfVllmAreSettingsOfTheExperiment) {
  EXPECT_THAT(vllm("--block-size 32 --gpu_memory_utilization=0.85 --kv-cache-dtype fp8 --scheduling-policy priority").overrides,
              ElementsAre("memory.block_tokens=32", "memory.gpu_memory_frac=0.85", "kv_policy=fp8", "order=priority"));
  EXPECT_THAT(vllm("--max-num-seqs 128 --no-async-scheduling --max-num-batched-tokens 4k").overrides,
              ElementsAre("scheduler.vllm_v1.async_scheduling=false", "scheduler.vllm_v1.budget_tokens=4000",
                          "scheduler.vllm_v1.max_num_seqs=128"));
  EXPECT_THAT(vllm("vllm serve llama-2-7b --max-model-len 2K").overrides, ElementsAre("model=llama-2-7b", "max_model_len=2048"));
  EXPECT_THAT(vllm("--no-enable-prefix-caching").overrides, ElementsAre("prefix_caching=false"));
  EXPECT_THAT(vllm("--kv-cache-dtype fp8_per_token_head").overrides,
              ElementsAre("kv_policy={recipe: fp8, format: {scaled_fp8: {scale: token}}}"));
}

// vLLM spreads experts over all ranks, and counts CPU memory per GPU in GiB.
TEST_F(EngineFlagsTest, ProductsTakeFactorsGivenBeforeAndAfter) {
  EXPECT_THAT(vllm("--enable-expert-parallel -tp 2 --data-parallel-size 4").overrides, Contains("parallel.ep=8"));
  EXPECT_THAT(vllm("-tp 2 --swap-space 4 -pp 2").overrides, Contains("memory.host_memory_bytes=17179869184"));
  EXPECT_THAT(vllm("--enable-expert-parallel", {"parallel={tp: 4}"}).overrides, ElementsAre("parallel.ep=4"));
  EXPECT_THAT(error_of([] { vllm("--swap-space 4", {"parallel={tp: [1, 2]}"}); }),
              HasSubstr("'parallel.tp' is no single number in the experiment, and an option is scaled by it: add --set parallel.tp=N"));
}

TEST_F(EngineFlagsTest, OptionsOfSglang) {
  EXPECT_THAT(sglang("--page-size 32 --max-total-tokens 100000").overrides,
              ElementsAre("memory.block_tokens=32", "memory.num_blocks=3125"));
  EXPECT_THAT(sglang("--mem-fraction-static 0.8").overrides, ElementsAre("memory.gpu_memory_frac=0.8", "memory.reserve_bytes=0"));
  EXPECT_THAT(sglang("--chunked-prefill-size -1 --schedule-policy lpm").overrides,
              ElementsAre("order=longest_prefix", "scheduler.sglang.chunk_tokens=0"));
}

TEST_F(EngineFlagsTest, ElementsOfAListThatAreTheEnginesGetTheOptions) {
  EXPECT_THAT(vllm("--max-num-seqs 8", {"scheduler=[orca, {vllm_v1: {budget_tokens: 512}}]"}).overrides,
              ElementsAre("scheduler=[orca, {vllm_v1: {budget_tokens: 512, max_num_seqs: 8}}]"));
  EXPECT_THAT(error_of([] { vllm("--max-num-seqs 8", {"scheduler=orca"}); }),
              HasSubstr("these options are of scheduler 'vllm_v1', and the experiment's is 'orca': add --set scheduler=vllm_v1"));
}

TEST_F(EngineFlagsTest, NothingIsSilent) {
  EXPECT_THAT(vllm("--port 8000").remarks, ElementsAre("--port 8000 of vLLM changes nothing: no server is started"));
  EXPECT_THAT(vllm("--port 8000 --dtype bfloat16").overrides, IsEmpty());
  EXPECT_THAT(vllm("--num-gpu-blocks-override 900").remarks,
              ElementsAre("--num-gpu-blocks-override 900 of vLLM sets memory.num_blocks=900 (the experiment has 600)"));
  const std::pair<const char*, const char*> cases[] = {
      {"--max-num-sequs 3", "--vllm-args: --max-num-sequs 3: unknown option of vLLM; did you mean 'max-num-seqs'?"},
      {"--speculative-config '{\"a\": 1}'", "speculative decoding is not simulated"},
      {"--kv-cache-dtype int3", "of its values auto, bfloat16, fp8, fp8_e4m3, fp8_e5m2, fp8_per_token_head can be simulated"},
      {"--max-num-seqs", "this option takes one value"},
      {"--enable-prefix-caching yes", "this option takes no value"},
      {"--max-model-len 'a", "a quote ' is not closed"},
      {"--dtype float32", "'torch_dtype' in the model's file"},
  };
  for (const auto& [text, message] : cases) EXPECT_THAT(error_of([&, &given = text] { vllm(given); }), HasSubstr(message)) << text;
  const std::string error = error_of([] { vllm("--enable-eplb --port 1 --max-num-sequs 3 -dcp 4 --max-num-seqs"); });
  EXPECT_THAT(
      error, has_all({"--vllm-args: 4 options cannot be taken. ", "--enable-eplb: experts do not move here", "did you mean 'max-num-seqs'?",
                      "-dcp 4: of its values 1 can be simulated; a sequence's KV is not cut over ranks here",
                      "--max-num-seqs: this option takes one value"}));
}

TEST_F(EngineFlagsTest, WholeLinesOfAShell) {
  EXPECT_THAT(
      vllm("CUDA_VISIBLE_DEVICES=0,1 vllm serve llama-2-7b \\\n  --port 8000 \\\n  -tp 2 --max_num_seqs=16  # comment\n 2>&1 | tee log")
          .overrides,
      ElementsAre("model=llama-2-7b", "parallel.tp=2", "scheduler.vllm_v1.max_num_seqs=16"));
  EXPECT_THAT(vllm("python3 -m vllm.entrypoints.openai.api_server --model=llama-2-7b --dp 2").overrides,
              ElementsAre("model=llama-2-7b", "parallel.dp=2"));
  EXPECT_THAT(vllm("docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.11.0 --model llama-2-7b").overrides,
              ElementsAre("model=llama-2-7b"));
  EXPECT_THAT(vllm("vllm serve --max-num-seqs 16 meta-llama/Llama-3.1-8B").overrides,
              ElementsAre("model=meta-llama/Llama-3.1-8B", "scheduler.vllm_v1.max_num_seqs=16"));
  EXPECT_THAT(vllm("CUDA_VISIBLE_DEVICES=0 --port 1").remarks, Contains("CUDA_VISIBLE_DEVICES=0 is of the environment, which is not read"));
  EXPECT_THAT(vllm("--kv-events-config \"{\\\"enable_kv_cache_events\\\": true}\"").remarks,
              ElementsAre(HasSubstr("{\"enable_kv_cache_events\": true} of vLLM changes nothing: events of the cache are not published")));
  EXPECT_THAT(error_of([] { vllm("--tensor-parallel-size $TP"); }), HasSubstr("write the value of this shell variable"));
}

TEST_F(EngineFlagsTest, OptionsThatChangeNothingArePassedOver) {
  for (const char* const line :
       {"--api-server-count 1", "--override-generation-config '{\"temperature\":0.6}'", "--cudagraph-capture-sizes 1 2 4 8",
        "--max-model-len auto", "--num-scheduler-steps 8", "--kv-cache-dtype auto", "--dtype auto", "-O3", "--compilation-config.mode 3",
        "--speculative-config null", "--cpu-offload-gb 0", "--no-enable-eplb", "--decode-context-parallel-size 1", "--enable-lora false",
        "--all2all-backend deepep_low_latency", "--limit-mm-per-prompt '{\"image\": 2}'", "--no-enable-log-requests",
        "--max-model-len -1"}) {
    EXPECT_THAT(vllm(line).overrides, IsEmpty()) << line;
    EXPECT_THAT(vllm(line).remarks, ElementsAre(HasSubstr(" of vLLM changes nothing: "))) << line;
  }
  EXPECT_THAT(sglang("--disable-flashinfer-autotune --tp-size 8").overrides, ElementsAre("parallel.tp=8"));
  EXPECT_THAT(sglang("--moe-a2a-backend deepep --ep-size 8 --tp 8").overrides, ElementsAre("parallel.ep=8", "parallel.tp=8"));
  EXPECT_THAT(vllm("--all2all-backend deepep_low_latency -dp 2").overrides, ElementsAre("parallel.all_to_all=deepep", "parallel.dp=2"));
  EXPECT_THAT(vllm("--enable-prefix-caching false --enable-chunked-prefill=True").overrides,
              ElementsAre("prefix_caching=false", "scheduler.vllm_v1.chunked_prefill=true"));
}

TEST_F(EngineFlagsTest, AnEmptyLineSetsNothing) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--vllm-args", ""}, {"--vllm-args="}, {"--vllm-args", " "}}) {
    EXPECT_THAT(call_ok({"run", "exp.yaml", "--out", "r"}, arguments).out, HasSubstr("--vllm-args is empty: it sets nothing\n"));
    EXPECT_TRUE(fs::exists("r/summary.csv"));
  }
  EXPECT_THAT(call({"run", "exp.yaml", "--out=", "r"}).err, HasSubstr("--out= has no value after the '='"));
}

TEST_F(EngineFlagsTest, RunSaysAndRecordsWhatIsSet) {
  EXPECT_THAT(call_ok({"run", "exp.yaml", "--vllm-args", "--max-num-seqs 4 --block-size 32"}).out,
              HasSubstr("--max-num-seqs 4 of vLLM sets scheduler.vllm_v1.max_num_seqs=4\n"));
  EXPECT_THAT(read("results/small/resolved.yaml"), has_all({"max_num_seqs: 4", "block_tokens: 32"}));
  EXPECT_THAT(read("results/small/manifest.json"), HasSubstr("memory.block_tokens=32"));
  EXPECT_THAT(error_of_call({"run", "exp.yaml", "--vllm-args", "--max-num-seqs", "4"}),
              HasSubstr("the options of an engine are one argument, in quotes: --vllm-args '--max-num-seqs 4'"));
}

// Of copies of the model SGLang's method is the dispatcher, of ranks the rule that chooses one of them.
TEST_F(EngineFlagsTest, LoadBalanceIsOfCopiesOrOfRanks) {
  const auto of_ranks = [](const std::string& method) {
    return read_engine_flags("sglang", "--load-balance-method " + method, "exp.yaml", {"scheduler=sglang", "parallel={dp: 2}"}).overrides;
  };
  EXPECT_THAT(sglang("--dp-size 2 --load-balance-method total_tokens").overrides, ElementsAre("replicas=2", "dispatcher=least_tokens"));
  EXPECT_THAT(sglang("--load-balance-method shortest_queue").overrides, ElementsAre("dispatcher=least_outstanding"));
  EXPECT_THAT(sglang("--load-balance-method auto").overrides, IsEmpty());
  EXPECT_THAT(of_ranks("total_requests"), ElementsAre("parallel.load_balance_method=total_requests"));
  EXPECT_THAT(of_ranks("minimum_tokens"), ElementsAre("parallel.load_balance_method=total_tokens"));
  EXPECT_THAT(of_ranks("auto"), ElementsAre("parallel.load_balance_method=round_robin"));
  EXPECT_THAT(error_of([&] { of_ranks("follow_bootstrap_room"); }), HasSubstr("of its values auto, minimum_tokens, round_robin"));
}

TEST_F(EngineFlagsTest, OptionsThatSetAKeyAreKnownAsForeignKeys) {
  for (const std::string& engine : yaml_names(KVLAB_SOURCE_DIR "/profiles/flags")) {
    const auto table = load_config(KVLAB_SOURCE_DIR "/profiles/flags/" + engine + ".yaml");
    for (const auto& option : table->root["options"]) {
      const std::string name = option.first.Scalar();
      const auto key = option.second["key"];
      EXPECT_TRUE(!key.IsDefined() || key.Scalar() == name || !own_key_for(name).empty()) << engine << " " << name;
    }
  }
}

}  // namespace
}  // namespace kvlab
