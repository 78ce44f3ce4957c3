// Speed of the simulator without trace parsing, on real traces from $KVLAB_DATA, else on generated ones of the same statistics (see the
// label).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "bench/reporters.h"
#include "bench/sim/reference_loop.h"
#include "sim/cost/make_cost_model.h"
#include "sim/simulation.h"
#include "traces/in_memory.h"
#include "traces/make_trace.h"

namespace kvlab {

namespace {

template <class Registry>
auto policy(const std::string& kind, const std::string& name, const std::string& parameters = "{}") {
  return [=] {
    Params p = Params::from_text(parameters, kind);
    return Registry::make(name, p, kind);
  };
}

struct Loaded {
  std::unique_ptr<InMemoryTrace> trace;
  std::string label;
};

Loaded& load(const std::string& file, const std::string& options, const std::string& stand_in) {
  static std::map<std::string, Loaded> loaded;
  Loaded& entry = loaded[file + stand_in];
  if (entry.trace != nullptr) return entry;
  const char* data = std::getenv("KVLAB_DATA");
  const std::string path = std::string(data != nullptr ? data : KVLAB_SOURCE_DIR "/../shared/data") + "/traces/" + file;
  const bool is_real = !file.empty() && std::filesystem::exists(path);
  Params p = Params::from_text(is_real ? "{file: '" + path + "', " + options + "}" : stand_in, "trace");
  entry.trace = std::make_unique<InMemoryTrace>(make_trace(p, 1));
  entry.label = is_real ? file : "generated (no " + file + ")";
  return entry;
}

SimSetup llama_on_h100(std::uint32_t replicas, std::int32_t block_tokens) {
  Params p = Params::from_text("{model: llama-3.1-8b, hardware: h100, profile: roofline}", "benchmark");
  const CostSetup cost = read_cost_setup(p);
  SimSetup setup;
  setup.num_replicas = replicas;
  setup.make_cost_model = [cost] { return make_cost_model(cost); };
  setup.make_scheduler = policy<SchedulerRegistry>("scheduler", "vllm_v1");
  setup.make_block_cache = policy<BlockCacheRegistry>("block cache", "lru");
  setup.make_footprint = [] { return std::make_unique<KeepAll>(); };
  setup.make_dispatcher = policy<DispatcherRegistry>("dispatcher", "round_robin");
  setup.memory.block_tokens = block_tokens;
  setup.memory.num_blocks = derive_num_blocks(cost, 0.9, default_reserve_bytes(cost, {8192, 256, 0}), block_tokens);
  setup.memory.block_bytes = block_tokens * kv_bytes_per_token(cost.model);
  setup.memory.pages_per_block = static_cast<std::int32_t>(cost.model.layers * cost.model.kv_heads);
  setup.max_model_len = 131'072;
  return setup;
}

void simulate_repeatedly(benchmark::State& state, const SimSetup& setup, Loaded& loaded) {
  RunSummary last;
  for (auto _ : state) {
    loaded.trace->rewind();
    RunSink sink;
    last = simulate(setup, *loaded.trace, sink);
  }
  const double runs = static_cast<double>(state.iterations());
  state.SetLabel(loaded.label);
  state.counters["requests_per_s"] = benchmark::Counter(static_cast<double>(last.requests) * runs, benchmark::Counter::kIsRate);
  state.counters["steps"] = static_cast<double>(last.steps);
  state.counters["steps_per_s"] = benchmark::Counter(static_cast<double>(last.steps) * runs, benchmark::Counter::kIsRate);
  state.counters["events"] = static_cast<double>(last.events);
  state.counters["block_operations"] = static_cast<double>(last.block_operations);
  state.counters["rejected"] = static_cast<double>(last.latencies.rejected);
  state.counters["preemptions"] = static_cast<double>(last.preemptions);
  state.counters["reference_random_reads_per_s"] = reference_rates().random_reads_per_s;
  state.counters["reference_integer_adds_per_s"] = reference_rates().integer_adds_per_s;
}

const char* const kLikeMooncake =
    "{generate: {requests: 12000, arrival: {poisson: {rate_per_s: 3.4}}, prompt_tokens: {lognormal: {median: 6900, mean: 12000}}, "
    "output_tokens: {lognormal: {median: 340, mean: 343}}}}";
const char* const kLikeAzure =
    "{generate: {requests: 19366, arrival: {poisson: {rate_per_s: 5.5}}, prompt_tokens: {lognormal: {median: 1020, mean: 1155}}, "
    "output_tokens: {lognormal: {median: 129, mean: 211}}}}";

void BM_MooncakeBlocks512(benchmark::State& state) {
  simulate_repeatedly(state, llama_on_h100(8, 512),
                      load("mooncake_conversation.jsonl", "format: mooncake, block_size: 512", kLikeMooncake));
}
BENCHMARK(BM_MooncakeBlocks512)->Unit(benchmark::kMillisecond);

void BM_MooncakeBlocks16(benchmark::State& state) {
  simulate_repeatedly(state, llama_on_h100(8, 16), load("mooncake_conversation.jsonl", "format: mooncake, block_size: 512", kLikeMooncake));
}
BENCHMARK(BM_MooncakeBlocks16)->Unit(benchmark::kMillisecond);

void BM_AzureConv(benchmark::State& state) {
  simulate_repeatedly(state, llama_on_h100(4, 16), load("azure_2023_conv.csv", "format: azure", kLikeAzure));
}
BENCHMARK(BM_AzureConv)->Unit(benchmark::kMillisecond);

// requests_per_s should not depend on the size.
void BM_Scaling(benchmark::State& state) {
  const std::string like_azure = "{generate: {requests: " + std::to_string(state.range(0)) +
                                 ", arrival: {poisson: {rate_per_s: 5.5}}, prompt_tokens: {lognormal: {median: 1020, mean: 1155}}, "
                                 "output_tokens: {lognormal: {median: 129, mean: 211}}}}";
  Loaded& loaded = load("", "", like_azure);
  simulate_repeatedly(state, llama_on_h100(4, 16), loaded);
  loaded.trace.reset();
}
BENCHMARK(BM_Scaling)->RangeMultiplier(10)->Range(10'000, 10'000'000)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace

}  // namespace kvlab

int main(int argc, char** argv) {
  kvlab::ReportFormats formats;
  for (int i = 1; i < argc; ++i) formats.read(argv[i]);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("reference_random_reads_per_s", std::to_string(kvlab::reference_rates().random_reads_per_s));
  benchmark::AddCustomContext("reference_integer_adds_per_s", std::to_string(kvlab::reference_rates().integer_adds_per_s));
  kvlab::FiniteNumbers<benchmark::JSONReporter> json, file;
  return kvlab::status_of_matches(benchmark::RunSpecifiedBenchmarks(formats.shows_json ? &json : nullptr,
                                                                    formats.writes_file && formats.writes_json ? &file : nullptr));
}
