// Speed of hit-ratio curves. One operation is a block lookup with its touch, insertion, eviction and release. Trace: Mooncake's
// conversation trace in 16-token blocks from $KVLAB_DATA, else a generated one of similar lengths and sharing (see the label).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "bench/sim/reference_loop.h"
#include "sim/hit_ratio.h"
#include "traces/make_trace.h"

namespace kvlab {
namespace {

constexpr const char* kLikeMooncake =
    "{generate: {requests: 12031, arrival: {poisson: {rate_per_s: 3.4}}, prompt_tokens: {lognormal: {median: 6900, mean: 12000}}, "
    "output_tokens: {lognormal: {median: 340, mean: 343}}, shared_prefix: {num_groups: 1, tokens: 512}, "
    "sessions: {turns: {geometric: {mean: 1.6}}, new_tokens: {lognormal: {median: 600, mean: 2000}}}}}";

struct Loaded {
  HitRatioTrace trace;
  std::string label;
};

const Loaded& mooncake() {
  static const Loaded loaded = [] {
    const char* data = std::getenv("KVLAB_DATA");
    const std::string name = "mooncake_conversation.jsonl";
    const std::string path = std::string(data ? data : KVLAB_SOURCE_DIR "/../shared/data") + "/traces/" + name;
    const bool is_real = std::filesystem::exists(path);
    Params p = Params::from_text(is_real ? "{file: '" + path + "', format: mooncake, block_size: 512}" : kLikeMooncake, "trace");
    return Loaded{load_hit_ratio_trace(*make_trace(p, 1), 16), is_real ? name : "generated (no " + name + ")"};
  }();
  return loaded;
}

void run_lru(benchmark::State& state, std::uint32_t capacity_blocks) {
  const Loaded& loaded = mooncake();
  Params none = Params::empty("block cache 'lru'");
  const auto cache = BlockCacheRegistry::make("lru", none, "block cache");
  HitRatio last;
  for (auto _ : state) last = run_hit_ratio(*cache, loaded.trace, capacity_blocks);
  const auto runs = static_cast<double>(state.iterations());
  state.SetLabel(loaded.label);
  state.counters["ops_per_s"] = benchmark::Counter(static_cast<double>(last.lookups) * runs, benchmark::Counter::kIsRate);
  state.counters["block_ops"] = static_cast<double>(last.lookups);
  state.counters["evictions"] = static_cast<double>(last.evictions);
  state.counters["hit_frac"] = last.hit_frac();
  state.counters["reference_random_reads_per_s"] = reference_rates().random_reads_per_s;
  state.counters["reference_integer_adds_per_s"] = reference_rates().integer_adds_per_s;
}

// About the KV of an 80-GB card next to an 8B model.
void BM_HitRatioLru(benchmark::State& state) { run_lru(state, 25'000); }
BENCHMARK(BM_HitRatioLru)->Unit(benchmark::kMillisecond);

void BM_HitRatioLruBlocks(benchmark::State& state) { run_lru(state, static_cast<std::uint32_t>(state.range(0))); }
BENCHMARK(BM_HitRatioLruBlocks)->RangeMultiplier(10)->Range(1'000, 1'000'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvlab
