#include "app/runs/plan/engine_flags.h"

#include "base/config/advice.h"
#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

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
