#include "app/runs/plan/kv_memory.h"
#include "app/runs/plan/serving_plan.h"
#include "app/runs/sweep/experiment.h"
#include "kernels/device/cuda/memory.h"
#include "sim/cost/profile.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "tests/app/app_fixture.h"
#include "tests/recipes_in.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

// KV policies in serving experiments.
using KvServingTest = AppTest;

// Prompts of 300 tokens cut to 128: less memory and shorter steps; each decode step of h2o and quest has operations of its own.
TEST_F(KvServingTest, PoliciesChangeMemoryAndStepTime) {
  std::string small = kSmall;
  const std::string given = "memory: {num_blocks: 600}\n";
  small.erase(small.find(given), given.size());  // a given number is the same for all
  write("small.yaml", small +
                          "kv_policy: [full, {recipe: [snapkv, h2o, quest], budget_tokens: 128}, kivi2]\n"
                          "scheduler: vllm_v1\n");
  const CsvTable s = summary_after({"small.yaml"});
  EXPECT_EQ(column(s, "completed"), std::vector<std::string>(5, "60"));
  constexpr std::size_t kFull = 0, kSnapKv = 1, kH2o = 2, kQuest = 3, kKivi = 4;
  EXPECT_EQ(number(s, "step_policy_frac", kFull), 0);
  for (const std::size_t r : {kSnapKv, kH2o, kQuest, kKivi}) EXPECT_GT(number(s, "step_policy_frac", r), 0);
  EXPECT_GT(number(s, "step_policy_frac", kH2o), number(s, "step_policy_frac", kSnapKv));
  for (const std::size_t r : {kSnapKv, kQuest}) EXPECT_LT(number(s, "step_attention_frac", r), number(s, "step_attention_frac", kFull));
  EXPECT_GT(number(s, "kv_blocks", kKivi), 4 * number(s, "kv_blocks", kFull));
  EXPECT_LT(number(s, "kv_blocks", kQuest), number(s, "kv_blocks", kFull)) << "bounds of pages take room";
}

// The budget is the length of the prompt, so each new token evicts one. In place this takes next to no time where
// positions tell which, and less than half of the time of moving all others where attention is read from the keys again.
TEST_F(KvServingTest, EvictionsOfEveryStepTakeLittleTime) {
  write("evicts.yaml",
        "name: evicts\nmodel: llama-3.1-8b\nhardware: l40s\nscheduler: vllm_v1\nmax_model_len: 32768\n"
        "trace: {generate: {requests: 12, arrival: {poisson: {rate_per_s: 0.3}}, prompt_tokens: 12000, output_tokens: 200}}\n"
        "kv_policy: [full, {recipe: [streaming, tova, h2o], budget_frac: 1.0, disposal: [drop, {drop: {in_place: false}}]}]\n");
  const Called called = call_ok({"run", "evicts.yaml"});
  const CsvTable s = read_csv("results/evicts/summary.csv");
  ASSERT_EQ(s.rows.size(), 7U);
  std::map<std::string, std::map<bool, double>> share, tpot;
  double full = 0;
  for (std::size_t r = 0; r < s.rows.size(); ++r) {
    const std::string recipe = text(s, "kv_policy.recipe", r);
    if (recipe.empty()) full = number(s, "tpot_mean_ms", r);
    const bool moves = text(s, "kv_policy.disposal", r) == "drop#2";
    share[recipe][moves] = number(s, "step_policy_frac", r), tpot[recipe][moves] = number(s, "tpot_mean_ms", r);
  }
  EXPECT_LT(share["streaming"][false], 0.01);
  EXPECT_NEAR(tpot["streaming"][false], full, 0.03 * full);
  for (const char* recipe : {"streaming", "tova", "h2o"}) {
    EXPECT_LT(share[recipe][false], 0.2) << recipe;
    EXPECT_LT(share[recipe][false], 0.5 * share[recipe][true]) << recipe;
  }
  EXPECT_THAT(called.out, HasSubstr("% of step time are operations of KV policy 'streaming|tova|h2o' itself"));
}

// Steps over packed KV are shorter if attention reads codes, and as long as plain ones if it reads KV that was decoded before. If each step
// decodes it anew, attention takes as long and the policy longer.
TEST_F(KvServingTest, DecodedKvTakesAsLongAsPlain) {
  const TempFolder bundle;
  bundle.write("model.yaml", kTinyModel);
  bundle.write("card.yaml", kTinyCard);
  write_tiny_bundle(bundle);
  write_kvlab_profile(read_bundle(bundle.path(), 1), bundle.path() + "/own");
  write("small.yaml", "name: small\nmodel: " + bundle.path() + "/model.yaml\nhardware: " + bundle.path() +
                          "/card.yaml\n"
                          "trace: {generate: {requests: 20, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: 1000, output_tokens: 40}}\n"
                          "memory: {num_blocks: 400}\nmax_model_len: 2048\nscheduler: vllm_v1\nkv_policy: [full, kivi2]\n"
                          "profile: {kvlab: {path: " +
                          bundle.path() + "/own, kv_reads: [stored, decoded, unpacked]}}\n");
  const CsvTable s = summary_after({"small.yaml"});
  ASSERT_EQ(s.rows.size(), 6U);
  std::map<std::string, double> attention, policy;  // of the time that is not the policy's own; of all
  for (std::size_t r = 0; r < 6; ++r) {
    const std::string run = text(s, "kv_policy", r) + " " + text(s, "profile.kvlab.kv_reads", r);
    policy[run] = number(s, "step_policy_frac", r);
    attention[run] = number(s, "step_attention_frac", r) / (1 - policy[run]);
  }
  EXPECT_DOUBLE_EQ(attention.at("full stored"), attention.at("full decoded"));
  EXPECT_LT(attention.at("kivi2 stored"), 0.96 * attention.at("full stored"));
  EXPECT_NEAR(attention.at("kivi2 decoded"), attention.at("full decoded"), 0.01 * attention.at("full decoded"));
  EXPECT_NEAR(attention.at("kivi2 unpacked"), attention.at("kivi2 decoded"), 0.01 * attention.at("full decoded"));
  EXPECT_EQ(policy.at("full unpacked"), 0);
  EXPECT_GT(policy.at("kivi2 unpacked"), 1.5 * policy.at("kivi2 decoded"));
}

// Merged layers take what `kvlab describe minicache` says of whole ones, and a prompt that fills most of the memory is served.
TEST_F(KvServingTest, MergedLayersSaveMemory) {
  write("small.yaml",
        "name: small\nmodel: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\nmax_model_len: 16384\nmemory: {num_blocks: 640}\n"
        "kv_policy: [full, minicache]\ntrace: {generate: {requests: 1, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: 8192, "
        "output_tokens: 1000}}\n");
  const CsvTable s = summary_after({"small.yaml"});
  EXPECT_THAT(column(s, "completed"), ElementsAre("1", "1"));
  EXPECT_NEAR(number(s, "kv_used_mean_frac", 1) / number(s, "kv_used_mean_frac"), 0.767, 0.015);
}

// Host memory is given in bytes: it has room for as many more blocks as a format makes them smaller.
TEST_F(KvServingTest, HostMemoryHoldsMoreOfSmallerBlocks) {
  const auto memory = [](const std::string& policy) {
    write("small.yaml", std::string(kSmall) + "kv_policy: " + policy + "\nscheduler: vllm_v1\n");
    const Experiment experiment = load_experiment("small.yaml", {"memory.host_memory_bytes=1000000000"});
    Params p = experiment.params(experiment.runs.front());
    return read_serving_plan(p, 1).setup.memory;
  };
  for (const char* policy : {"full", "fp8", "kivi2", "quest"}) {
    const MemorySetup m = memory(policy);
    EXPECT_EQ(m.host_blocks, 1'000'000'000 / m.block_bytes) << policy;
  }
}

TEST_F(KvServingTest, SamplesSayWhatIsKept) {
  write("small.yaml",
        std::string(kSmall) +
            "samples: {made: {synthetic: {layers: 2, q_heads: 4, kv_heads: 2, head_dim: 32, prompt_tokens: 200, decode_tokens: 4}}}\n"
            "kv_policy: [full, {recipe: snapkv, budget_tokens: 64}]\n"
            "scheduler: vllm_v1\n");
  const CsvTable s = summary_after({"small.yaml"});
  EXPECT_EQ(std::tuple(number(s, "attention_mass"), number(s, "output_rel_err")), std::tuple(1, 0));
  EXPECT_EQ(std::tuple(text(s, "recipe", 1), text(s, "budget_tokens", 1)), std::tuple("snapkv", "64"));
  EXPECT_LT(number(s, "attention_mass", 1), 1);
  EXPECT_LT(number(s, "resident_bytes_frac", 1), 0.5);
}

// Prompts of 1, 2, 5 and 100 tokens, some shorter than what the recipe always keeps: they are served in both hosts, and the run says so.
TEST_F(KvServingTest, ServesShortPrompts) {
  write("t.csv", "arrival_ns,prompt_tokens,output_tokens\n0,1,3\n100000000,2,3\n200000000,5,3\n300000000,100,3\n");
  const std::string rest =
      "hardware: h100\nscheduler: vllm_v1\nmax_model_len: 512\nmemory: {num_blocks: 200}\nkv_policy: [{recipe: knorm, budget_frac: 0.4}, "
      "{recipe: snapkv, budget_frac: 0.2}, {recipe: streaming, budget_tokens: 16}, {recipe: kvpress_snapkv, compression_ratio: 0.6}]\n"
      "trace: {file: t.csv}\n";
  for (const std::string host :
       {"name: simulated\nmodel: llama-3.1-8b\n", "name: served\nhost: engine\nmodel: " KVLAB_SOURCE_DIR "/engine/probe\n"}) {
    write("short.yaml", host + rest);
    const Called called = call_ok({"run", "short.yaml"});
    const CsvTable s = read_csv(host.find("engine") == std::string::npos ? "results/simulated/summary.csv" : "results/served/summary.csv");
    EXPECT_EQ(column(s, "completed"), std::vector<std::string>(4, "4"));
    EXPECT_THAT(called.out, HasSubstr("3 of 4 requests keep more than the policy's budget, which is less of their prompts than what always "
                                      "stays; a prompt no longer than that stays whole"));
    EXPECT_THAT(called.out, Not(HasSubstr("4 of 4 requests keep")));
  }
}

TEST_F(KvServingTest, SelectorsTakeAShare) {
  const std::string policies =
      "kv_policy: [{recipe: h2o, budget_frac: 0.25}, {recipe: snapkv, budget_frac: 0.25}, {recipe: quest, budget_frac: 0.25}, {recipe: "
      "quest, budget_tokens: 100}]\n";
  const std::string serving =
      "hardware: h100\nscheduler: vllm_v1\nmax_model_len: 512\nmemory: {num_blocks: 200}\ntrace: {generate: {requests: 2, arrival: "
      "{poisson: {rate_per_s: 50}}, prompt_tokens: 400, output_tokens: 4}}\n";
  write("a.yaml", "name: simulated\nmodel: llama-3.1-8b\n" + serving + policies);
  write("b.yaml", "name: served\nhost: engine\nmodel: " KVLAB_SOURCE_DIR "/engine/probe\n" + serving + policies);
  write("c.yaml",
        "name: replayed\nhost: replay\nsamples: {s: {synthetic: {layers: 4, q_heads: 4, kv_heads: 2, head_dim: 32, prompt_tokens: 400, "
        "decode_tokens: 4}}}\n" +
            policies);
  call_ok({"run", "b.yaml"});
  const CsvTable simulated = summary_after({"a.yaml"}), replayed = summary_after({"c.yaml"});
  for (const char* column : {"e2e_p99_ms", "step_attention_frac", "step_policy_frac"})
    EXPECT_EQ(number(simulated, column, 2), number(simulated, column, 3)) << column;
  for (std::size_t row = 0; row < 4; ++row) EXPECT_EQ(number(replayed, "budget_tokens", row), 100);
  EXPECT_EQ(number(replayed, "attention_mass", 2), number(replayed, "attention_mass", 3));
  EXPECT_LT(number(replayed, "attention_mass", 2), 1);
}

TEST_F(KvServingTest, RefusesABudgetThatCannotServe) {
  write("small.yaml", std::string(kSmall) + "kv_policy: {recipe: snapkv, budget_tokens: 8}\nscheduler: vllm_v1\n");
  EXPECT_EQ(call({"run", "small.yaml"}).err,
            "kvlab: small.yaml:9:12: recipe 'snapkv' cannot run: a budget of 8 tokens is below the 32 last tokens that it always keeps\n");
}

TEST(LentFootprint, IsMadeOnceForRunsThatFollowEachOther) {
  int made = 0;
  const auto lend = lending([&made]() -> std::unique_ptr<Footprint> {
    ++made;
    return std::make_unique<KeepAll>();
  });
  for (int run = 0; run < 3; ++run) {
    const auto one = lend();
    EXPECT_TRUE(one->keeps_everything());
  }
  EXPECT_EQ(made, 1);
  const auto first = lend(), second = lend();  // two replicas at a time
  EXPECT_EQ(made, 2);
}

TEST(LentFootprint, SaysWhatAFreshOneSays) {
  const Recipe recipe = recipe_of("{recipe: d2o, budget_frac: 0.3}");
  const auto make = [&recipe] { return std::make_unique<RecipeFootprint>(recipe, ModelShape{12, 4, 2, 32, 64}, 16); };
  const auto lend = lending(make);
  for (const std::int32_t prompt : {40, 75, 40, 130}) {
    const auto lent = lend();
    const std::unique_ptr<Footprint> fresh = make();
    SeqState a{0, prompt}, b = a;
    for (std::int32_t next = prompt, i = 0; i < 5; ++i, next = 1) {
      a = a.taking(next), b = b.taking(next);
      const FootprintStep one = lent->step(a), other = fresh->step(b);
      EXPECT_EQ(std::tuple(one.kept_pages, one.peak_pages), std::tuple(other.kept_pages, other.peak_pages));
      PolicyWork work, expected;
      lent->charge({&a, 1}, work), fresh->charge({&b, 1}, expected);
      ASSERT_EQ(work.ops.size(), expected.ops.size());
      for (std::size_t k = 0; k < work.ops.size(); ++k) EXPECT_EQ(work.ops[k].bytes, expected.ops[k].bytes);
      a = one.after(a), b = other.after(b);
    }
  }
}

// 'host: engine' with a trace, through the front.

// The probe's folder as model, times from the roofline of a GPU: nothing here measures anything.
const char* const kServed =
    "name: served\n"
    "host: [sim, engine]\n"
    "model: " KVLAB_SOURCE_DIR
    "/engine/probe\n"
    "hardware: h100\n"
    "trace: {generate: {requests: 6, arrival: {poisson: {rate_per_s: 50}}, prompt_tokens: 30, output_tokens: 3}}\n"
    "scheduler: [vllm_v1, sarathi]\n"
    "memory: {num_blocks: 100}\n"
    "max_model_len: 2048\n";

struct ServedRun : AppTest {
  ServedRun() { write("served.yaml", kServed); }
};

TEST_F(ServedRun, BothHostsWriteTheSameTablesAndAreCompared) {
  const Called called = call_ok({"run", "served.yaml", "--out", "out"});
  const CsvTable requests = read_csv("out/requests.csv"), steps = read_csv("out/engine_steps.csv"), summary = read_csv("out/summary.csv");
  EXPECT_EQ(requests.rows.size(), 24U);
  EXPECT_EQ(summary.rows.size(), 4U);
  ASSERT_FALSE(steps.rows.empty());
  for (const auto& row : steps.rows) {
    EXPECT_GT(std::stoll(row[steps.at("measured_ns")]), 0);
    EXPECT_GT(std::stoll(row[steps.at("predicted_ns")]), 0);
  }
  for (const auto& row : summary.rows) {
    const bool is_engine = row[summary.at("host")] == "engine";
    EXPECT_EQ(std::tuple(row[summary.at("completed")], row[summary.at("inside_frac")].empty(), row[summary.at("step_linear_frac")].empty()),
              std::tuple("6", is_engine, is_engine));
  }
  const CsvTable validation = read_csv("out/validation.csv");
  EXPECT_EQ(validation.rows.size(), 2U * 3 * 4);
  EXPECT_EQ(csv_line(validation.columns), "scheduler,seed,sim_run,engine_run,metric,statistic,real,simulated,diff_frac\n");
  EXPECT_THAT(called.out, HasSubstr("furthest off"));
}

// A step of the engine's takes longer than the microsecond after which the runs stop.
TEST_F(ServedRun, HostsThatCompleteOtherRequestsAreTold) {
  const std::vector<std::string> run{"run", "served.yaml", "--out", "out", "--set", "scheduler=vllm_v1", "--set", "stop.after_s=1e-6"};
  const Called nothing = call_ok(run);
  EXPECT_THAT(nothing.out, HasSubstr("nothing to compare\n"));
  const std::string told = call(run, {"--set", "validate.max_diff_frac=0.5", "--force"}).err;  // before its run has an id
  EXPECT_EQ(told, "kvlab: out/requests.csv: run " + run_id("out") +
                      " completed no request, so that 'max_diff_frac' 0.5 has nothing to hold for\n");
}

// Only the shape of the model counts: no file of weights is there.
TEST_F(ServedRun, RandomWeightsHaveTheShapeOfTheModel) {
  write("tiny.yaml",
        "model_type: llama\nhidden_size: 64\nnum_hidden_layers: 2\nnum_attention_heads: 4\nnum_key_value_heads: 2\nintermediate_size: "
        "96\nvocab_size: 50\nmax_position_embeddings: 2048\n");
  const std::vector<std::string> run{"run",   "served.yaml",      "--out", "out", "--set", "model=tiny.yaml", "--set", "host=engine",
                                     "--set", "scheduler=vllm_v1"};
  EXPECT_THAT(call(run).err, HasSubstr("'weights: random'"));
  std::vector<std::string> random{"--set", "weights=random", "--set", "temperature=1", "--set", "idle=asleep"};
  EXPECT_THAT(call_ok(run, random).out, HasSubstr("random weights in the shape of tiny"));
  EXPECT_EQ(read_csv("out/requests.csv").rows.size(), 6U);
  random.insert(random.end(), {"--force", "--set", "model=opt-6.7b"});
  EXPECT_THAT(call(run, random).err, HasSubstr("opt-6.7b has learned positions, which the engine does not compute"));
}

TEST_F(ServedRun, LoadIsAShareOfTheSimulatedCapacity) {
  const CsvTable summary = summary_after({"served.yaml", "--set", "host=sim", "--set", "scheduler=vllm_v1", "--set",
                                          "trace.generate.requests=2000", "--set", "load_frac=0.5"});
  const double capacity = number(summary, "capacity_per_s");
  EXPECT_NEAR(number(summary, "requests_per_s"), capacity / 2, capacity * 0.02);
}

TEST_F(ServedRun, RefusesWhatTheEngineCannotServe) {
  const auto error = [](const std::string& set) {
    return error_of_call({"run", "served.yaml", "--out", "out", "--set", "host=engine", "--set", "scheduler=vllm_v1", "--set", set});
  };
  EXPECT_THAT(error("replicas=2"), HasSubstr("one replica"));
  EXPECT_THAT(error("model=llama-3.1-8b"), HasSubstr("weights"));
  EXPECT_THAT(error("block_cache=belady"), HasSubstr("future"));
}

TEST_F(ServedRun, WithoutAGpuCudaIsRefusedWhereItIsNamed) {
  if (num_gpus() > 0) GTEST_SKIP() << "this machine has a GPU";
  const std::string error = error_of_call({"run", "served.yaml", "--out", "out", "--set", "backend=cuda"});
  EXPECT_EQ(error.find("kvlab: --set backend=cuda: backend cuda: "), 0U) << error;
  EXPECT_THAT(error, HasSubstr(why_no_gpu()));
  EXPECT_FALSE(fs::exists("out"));
}

// Without other axes only the metric is furthest off.
TEST_F(ServedRun, ADifferenceBeyondTheLimitIsAnError) {
  const Called called = call({"run", "served.yaml", "--out", "out", "--set", "scheduler=vllm_v1", "--set", "validate.max_diff_frac=1e-9"});
  EXPECT_EQ(called.status, 2);
  EXPECT_THAT(called.err, has_all({"max_diff_frac", "% in "}));
  const std::size_t at = called.out.find("furthest off: ");
  ASSERT_NE(at, std::string::npos) << called.out;
  const std::string line = called.out.substr(at, called.out.find('\n', at) - at);
  EXPECT_THAT(line, Not(HasSubstr(" of ")));
  EXPECT_THAT(called.err, Not(HasSubstr(" of ")));
}

}  // namespace
}  // namespace kvlab
