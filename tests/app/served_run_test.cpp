// 'host: engine' with a trace, through the front.
#include "kernels/device/cuda/memory.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

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
