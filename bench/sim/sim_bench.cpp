// Speed of the simulator without trace parsing, on real traces from $KVLAB_DATA, else on generated ones of the same statistics (see the
// label).
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "bench/reporters.h"
#include "sim/cost/make_cost_model.h"
#include "sim/hit_ratio.h"
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

// This machine's rates in a fixed loop, measured once per program, as a reference for simulator speeds.
struct ReferenceRates {
  double random_reads_per_s = 0;  // dependent reads of random 64-byte lines in 64 MiB
  double integer_adds_per_s = 0;  // dependent 64-bit adds and xors
};

struct Line {
  std::uint32_t next;
  std::uint32_t padding[15];
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double measure_reads() {
  constexpr std::uint32_t kLines = (64U << 20) / sizeof(Line);
  constexpr int kReads = 4'000'000;
  std::vector<Line> lines(kLines);
  std::vector<std::uint32_t> order(kLines);
  std::iota(order.begin(), order.end(), 0U);
  for (std::uint32_t i = kLines - 1; i > 0; --i) std::swap(order[i], order[Draw{7, Purpose::kTest, i, 0, 0}.below(i)]);  // one cycle
  for (std::uint32_t i = 0; i < kLines; ++i) lines[order[i]].next = order[(i + 1) % kLines];
  std::uint32_t at = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kReads; ++i) at = lines[at].next;
  benchmark::DoNotOptimize(at);
  return kReads / seconds_since(start);
}

double measure_adds() {
  constexpr int kAdds = 200'000'000;
  std::uint64_t x = 1;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kAdds; i += 2) {
    x += static_cast<std::uint64_t>(i);
    benchmark::DoNotOptimize(x);
    x ^= x << 1;
  }
  benchmark::DoNotOptimize(x);
  return kAdds / seconds_since(start);
}

const ReferenceRates& reference_rates() {
  static const ReferenceRates rates{measure_reads(), measure_adds()};
  return rates;
}

void show_reference(benchmark::State& state) {
  state.counters["reference_random_reads_per_s"] = reference_rates().random_reads_per_s;
  state.counters["reference_integer_adds_per_s"] = reference_rates().integer_adds_per_s;
}

// A real trace, or a stand-in, and which of them.
struct Source {
  std::unique_ptr<TraceSource> trace;
  std::string label;
};
Source source_of(const std::string& file, const std::string& options, const std::string& stand_in) {
  const char* data = std::getenv("KVLAB_DATA");
  const std::string path = std::string(data != nullptr ? data : KVLAB_SOURCE_DIR "/../shared/data") + "/traces/" + file;
  const bool is_real = !file.empty() && std::filesystem::exists(path);
  Params p = Params::from_text(is_real ? "{file: '" + path + "', " + options + "}" : stand_in, "trace");
  return {make_trace(p, 1), is_real ? file : "generated (no " + file + ")"};
}

struct Loaded {
  std::unique_ptr<InMemoryTrace> trace;
  std::string label;
};

Loaded& load(const std::string& file, const std::string& options, const std::string& stand_in) {
  static std::map<std::string, Loaded> loaded;
  Loaded& entry = loaded[file + stand_in];
  if (entry.trace != nullptr) return entry;
  Source source = source_of(file, options, stand_in);
  entry = {std::make_unique<InMemoryTrace>(std::move(source.trace)), source.label};
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
  show_reference(state);
}

const char *const kMooncake = "mooncake_conversation.jsonl", *const kMooncakeOptions = "format: mooncake, block_size: 512";
const char* const kLikeMooncake =
    "{generate: {requests: 12000, arrival: {poisson: {rate_per_s: 3.4}}, prompt_tokens: {lognormal: {median: 6900, mean: 12000}}, "
    "output_tokens: {lognormal: {median: 340, mean: 343}}}}";
const char* const kLikeAzure =
    "{generate: {requests: 19366, arrival: {poisson: {rate_per_s: 5.5}}, prompt_tokens: {lognormal: {median: 1020, mean: 1155}}, "
    "output_tokens: {lognormal: {median: 129, mean: 211}}}}";

void BM_MooncakeBlocks512(benchmark::State& state) {
  simulate_repeatedly(state, llama_on_h100(8, 512), load(kMooncake, kMooncakeOptions, kLikeMooncake));
}
BENCHMARK(BM_MooncakeBlocks512)->Unit(benchmark::kMillisecond);

void BM_MooncakeBlocks16(benchmark::State& state) {
  simulate_repeatedly(state, llama_on_h100(8, 16), load(kMooncake, kMooncakeOptions, kLikeMooncake));
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

// Speed of hit-ratio curves. One operation is a block lookup with its touch, insertion, eviction and release. The stand-in of Mooncake's
// trace has similar lengths and sharing.
constexpr const char* kLikeSharedMooncake =
    "{generate: {requests: 12031, arrival: {poisson: {rate_per_s: 3.4}}, prompt_tokens: {lognormal: {median: 6900, mean: 12000}}, "
    "output_tokens: {lognormal: {median: 340, mean: 343}}, shared_prefix: {num_groups: 1, tokens: 512}, "
    "sessions: {turns: {geometric: {mean: 1.6}}, new_tokens: {lognormal: {median: 600, mean: 2000}}}}}";

struct LookedUp {
  HitRatioTrace trace;
  std::string label;
};

const LookedUp& mooncake() {
  static const LookedUp loaded = [] {
    const Source source = source_of(kMooncake, kMooncakeOptions, kLikeSharedMooncake);
    return LookedUp{load_hit_ratio_trace(*source.trace, 16), source.label};
  }();
  return loaded;
}

void run_cache(benchmark::State& state, const std::string& name, std::uint32_t capacity_blocks) {
  const LookedUp& loaded = mooncake();
  const auto cache = policy<BlockCacheRegistry>("block cache", name)();
  HitRatio last;
  for (auto _ : state) last = run_hit_ratio(*cache, loaded.trace, capacity_blocks);
  const auto runs = static_cast<double>(state.iterations());
  state.SetLabel(loaded.label);
  state.counters["ops_per_s"] = benchmark::Counter(static_cast<double>(last.lookups) * runs, benchmark::Counter::kIsRate);
  state.counters["block_ops"] = static_cast<double>(last.lookups);
  state.counters["evictions"] = static_cast<double>(last.evictions);
  state.counters["hit_frac"] = last.hit_frac();
  show_reference(state);
}

// About the KV of an 80-GB card next to an 8B model.
constexpr std::uint32_t kCardBlocks = 25'000;
void BM_HitRatioLru(benchmark::State& state) { run_cache(state, "lru", kCardBlocks); }
BENCHMARK(BM_HitRatioLru)->Unit(benchmark::kMillisecond);

void BM_HitRatio(benchmark::State& state, const char* cache) { run_cache(state, cache, kCardBlocks); }
BENCHMARK_CAPTURE(BM_HitRatio, fifo, "fifo")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_HitRatio, lfu, "lfu")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_HitRatio, belady, "belady")->Unit(benchmark::kMillisecond);

void BM_HitRatioLruBlocks(benchmark::State& state) { run_cache(state, "lru", static_cast<std::uint32_t>(state.range(0))); }
BENCHMARK(BM_HitRatioLruBlocks)->RangeMultiplier(10)->Range(1'000, 1'000'000)->Unit(benchmark::kMillisecond);

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
