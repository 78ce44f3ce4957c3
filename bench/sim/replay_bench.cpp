// Speed of replay against the machine's limits: 8 KV heads of 128 channels, 4 query heads each, 8,192 prompt tokens, float32.
// roofline_frac: over the operation log, the longer of bytes and FLOPs at measured rates, over the time taken. frac_with_append adds
// appending K and V, which the log lacks.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "base/parallel.h"
#include "bench/sim/machine_rates.h"
#include "kernels/attention/append_kv/append_kv.h"
#include "sim/replay/replay.h"
#include "traces/synthetic_attention.h"

namespace kvlab {

namespace {

constexpr std::int32_t kDecodeTokens = 64;

struct Sample {
  AttentionTrace trace;
  AttentionReference reference;
  double reference_s = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const Sample& sample_of(std::int32_t layers) {
  static std::map<std::int32_t, std::unique_ptr<Sample>> made;
  std::unique_ptr<Sample>& sample = made[layers];
  if (sample != nullptr) return *sample;
  Params p = Params::from_text(
      "{layers: " + std::to_string(layers) +
          ", q_heads: 32, kv_heads: 8, head_dim: 128, prompt_tokens: 8192, decode_tokens: " + std::to_string(kDecodeTokens) + "}",
      "trace");
  const SyntheticAttention source(read_synthetic_attention(p), 1);
  sample = std::make_unique<Sample>();
  sample->trace = source.outline();
  sample->trace.layers.resize(static_cast<std::size_t>(layers));
  for_each_in_parallel(
      layers, [&](std::int64_t l) { sample->trace.layers[static_cast<std::size_t>(l)] = source.layer(static_cast<std::int32_t>(l)); });
  const auto start = std::chrono::steady_clock::now();
  sample->reference = full_attention(sample->trace);
  sample->reference_s = seconds_since(start);
  return *sample;
}

struct Needed {
  double bytes = 0, flops = 0, seconds = 0;
  void add(double more_bytes, double more_flops) {
    bytes += more_bytes, flops += more_flops;
    seconds += std::max(more_bytes / machine_rates().bytes_per_s(), more_flops / machine_rates().gemm_flops_per_s);
  }
};

double append_bytes(const AttentionTrace& t) {
  return static_cast<double>(t.num_layers) * static_cast<double>(bytes(AppendKvShape{t.num_tokens, t.kv_heads, t.head_dim, 4, 4}));
}

void show(benchmark::State& state, const Needed& needed, const AttentionTrace& t, double wall_s) {
  state.counters["needed_bytes"] = needed.bytes;
  state.counters["needed_flops"] = needed.flops;
  state.counters["fastest_s"] = wall_s;
  state.counters["roofline_frac"] = needed.seconds / wall_s;
  state.counters["frac_with_append"] = (needed.seconds + append_bytes(t) / machine_rates().bytes_per_s()) / wall_s;
  state.counters["copy_bytes_per_s"] = machine_rates().copy_bytes_per_s;
  state.counters["read_bytes_per_s"] = machine_rates().read_bytes_per_s;
  state.counters["gemm_flops_per_s"] = machine_rates().gemm_flops_per_s;
}

void replay_repeatedly(benchmark::State& state, const std::string& name) {
  const Sample& sample = sample_of(static_cast<std::int32_t>(state.range(0)));
  Params p = Params::from_text("{recipe: '" KVLAB_SOURCE_DIR "/policies/kv/recipes/" + name + ".yaml'}", "kv_policy");
  const Recipe recipe = read_recipe(p);
  Needed needed;
  ReplayResult last;
  double wall_s = 0;
  for (auto _ : state) {
    Ops ops(Ops::Backend::kCpu);
    ReplayOptions options;
    options.kv_bytes = 4;
    options.ops = &ops;
    const auto start = std::chrono::steady_clock::now();
    last = replay(sample.trace, sample.reference, recipe, options);
    const double taken_s = seconds_since(start);
    wall_s = wall_s == 0 ? taken_s : std::min(wall_s, taken_s);
    needed = {};
    for (const OpCall& c : ops.log()) needed.add(static_cast<double>(c.bytes), static_cast<double>(c.flops));
  }
  state.counters["roofline_s"] = needed.seconds;
  state.counters["append_bytes"] = append_bytes(sample.trace);
  state.counters["attention_mass"] = last.mean.attention_mass;
  show(state, needed, sample.trace, wall_s);
}

void BM_ReplaySnapkv(benchmark::State& state) { replay_repeatedly(state, "snapkv"); }
BENCHMARK(BM_ReplaySnapkv)->Arg(4)->Arg(32)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_ReplayH2o(benchmark::State& state) { replay_repeatedly(state, "h2o"); }
BENCHMARK(BM_ReplayH2o)->Arg(4)->Arg(32)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_ReplayQuest(benchmark::State& state) { replay_repeatedly(state, "quest"); }
BENCHMARK(BM_ReplayQuest)->Arg(4)->Arg(32)->Unit(benchmark::kMillisecond)->UseRealTime();

// Full-cache attention of every decode step, shared by all replays of a sample: K and V are read once per step and layer.
void BM_ReplayReference(benchmark::State& state) {
  const Sample& sample = sample_of(static_cast<std::int32_t>(state.range(0)));
  const AttentionTrace& t = sample.trace;
  double tokens = 0;
  for (std::int32_t step = t.prompt_tokens; step < t.num_tokens; ++step) tokens += step + 1;
  Needed needed;
  needed.add(tokens * t.num_layers * t.kv_heads * 2 * t.head_dim * 4, tokens * t.num_layers * t.q_heads * 4 * t.head_dim);
  double wall_s = sample.reference_s;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(full_attention(t));
    wall_s = std::min(wall_s, seconds_since(start));
  }
  show(state, needed, t, wall_s);
}
BENCHMARK(BM_ReplayReference)->Arg(4)->Arg(32)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

}  // namespace kvlab
