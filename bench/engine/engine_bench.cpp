// Speed of the CPU engine against the machine's own limits, for the probe: a prompt's operations at the rate of a matrix product, a decode
// step's products of weights and its attention, one behind the other, each the longer of its FLOPs at that rate and its bytes (weights, K
// and V, each read once) at the memory's for reads. roofline_frac is that over the time taken.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/sim/machine_rates.h"
#include "engine/cache/policy_cache.h"
#include "engine/model/model_work.h"
#include "engine/model/plain_cache.h"

namespace kvlab {

namespace {

const Transformer& probe_model() {
  static const Transformer model = Transformer::load(KVLAB_SOURCE_DIR "/engine/probe");
  return model;
}

std::vector<std::int32_t> ids_of(std::int64_t n) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(32 + i * 7 % 90));
  return ids;
}

void BM_EnginePrefill(benchmark::State& state) {
  const ModelWork work(probe_model().config());
  const auto n = static_cast<double>(state.range(0));
  const std::vector<std::int32_t> ids = ids_of(state.range(0));
  for (auto _ : state) {
    KvState kv(probe_model().config());
    benchmark::DoNotOptimize(forward(probe_model(), ids, kv).data());
  }
  const double least_s = work.forward_flops(0, n) / machine_rates().gemm_flops_per_s * static_cast<double>(state.iterations());
  state.counters["tokens_per_s"] = benchmark::Counter(n * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["roofline_frac"] = benchmark::Counter(least_s, benchmark::Counter::kIsRate);
}
BENCHMARK(BM_EnginePrefill)->Arg(512)->Arg(2048)->Arg(4000)->Unit(benchmark::kMillisecond)->UseRealTime();

// range(0) sequences of range(1) tokens, one token each.
void BM_EngineDecode(benchmark::State& state) {
  const ModelWork work(probe_model().config());
  const auto batch = static_cast<std::int32_t>(state.range(0)), context = static_cast<std::int32_t>(state.range(1));
  PolicyCache cache(probe_model(), load_recipe("full"), {});
  const std::vector<std::int32_t> ids = ids_of(context);
  const PromptTensors prompt = run_prompt(probe_model(), ids, {}, {});
  std::vector<EngineSequence> sequences(static_cast<std::size_t>(batch));
  std::vector<StepPiece> pieces;
  for (std::int32_t i = 0; i < batch; ++i) {
    EngineSequence& s = sequences[static_cast<std::size_t>(i)];
    s.index = i, s.prompt_tokens = context, s.ids = ids;
    cache.start(s);
    cache.adopt(s, prompt);
    pieces.push_back({&s, 1});
  }
  const std::vector<std::int32_t> next(sequences.size(), 65);
  for (auto _ : state) {
    const std::vector<std::int32_t> positions(sequences.size(), sequences[0].seen_tokens);
    cache.begin_step(pieces);
    const std::vector<float> hidden = probe_model().forward({next, positions}, cache);
    cache.end_step(hidden);
    benchmark::DoNotOptimize(probe_model().logits(hidden).data());
  }
  const double b = batch, n = context + 0.5 * static_cast<double>(state.iterations());
  const MachineRates& rates = machine_rates();
  const auto least = [&](double flops, double floats) {
    return std::max(flops / rates.gemm_flops_per_s, 4 * floats / rates.read_bytes_per_s);
  };
  const double weights = work.weights + work.head_weights;
  const double least_s = least(b * 2 * weights, weights) + least(work.attention_flops(b * n), 2 * b * n * work.layers * work.kv_width);
  state.counters["tokens_per_s"] = benchmark::Counter(b * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["roofline_frac"] = benchmark::Counter(least_s * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_EngineDecode)->ArgsProduct({{1, 8, 32}, {512, 3500}})->Unit(benchmark::kMicrosecond)->UseRealTime()->Iterations(50);

}  // namespace

}  // namespace kvlab
