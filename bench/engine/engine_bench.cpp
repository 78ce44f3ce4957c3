// Speed of the CPU engine on the probe, against the machine's limits: a prompt's FLOPs at a matrix product's rate; a decode step's weights
// and attention in turn, each the longer of FLOPs and bytes. roofline_frac: limit over time, median over rounds, with rates measured around
// each. of_best_frac: against the fastest rates seen (machine_rates).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/quantile.h"
#include "bench/sim/machine_rates.h"
#include "engine/cache/policy_cache.h"
#include "engine/model/config.h"
#include "engine/model/transformer.h"

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

// Shares of the machine's limits over repeated rounds.
class Rounds {
 public:
  // A round's limit in seconds at given rates.
  using LeastSeconds = std::function<double(const MachineRates&)>;

  explicit Rounds(LeastSeconds least_s) : least_s_(std::move(least_s)), after_(rates_now()) {}

  void begin() { begin_ = Clock::now(); }
  void end() {
    const double took_s = std::chrono::duration<double>(Clock::now() - begin_).count();
    const MachineRates before = std::exchange(after_, rates_now());
    MachineRates beside;
    beside.read_bytes_per_s = (before.read_bytes_per_s + after_.read_bytes_per_s) / 2;
    beside.gemm_flops_per_s = (before.gemm_flops_per_s + after_.gemm_flops_per_s) / 2;
    beside_frac_.push_back(least_s_(beside) / took_s);
    best_frac_.push_back(least_s_(machine_rates()) / took_s);
  }
  void show(benchmark::State& state) {
    state.counters["roofline_frac"] = median(beside_frac_);
    state.counters["of_best_frac"] = median(best_frac_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  LeastSeconds least_s_;
  MachineRates after_;
  Clock::time_point begin_;
  std::vector<double> beside_frac_, best_frac_;
};

void BM_EnginePrefill(benchmark::State& state) {
  const ModelWork work(probe_model().config());
  const auto n = static_cast<double>(state.range(0));
  const std::vector<std::int32_t> ids = ids_of(state.range(0));
  Rounds rounds([&](const MachineRates& rates) { return work.forward_flops(0, n) / rates.gemm_flops_per_s; });
  for (auto _ : state) {
    rounds.begin();
    KvState kv(probe_model().config());
    benchmark::DoNotOptimize(forward(probe_model(), ids, kv).data());
    state.PauseTiming();
    rounds.end();
    state.ResumeTiming();
  }
  state.counters["tokens_per_s"] = benchmark::Counter(n * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  rounds.show(state);
}
BENCHMARK(BM_EnginePrefill)->Arg(512)->Arg(2048)->Arg(4000)->Unit(benchmark::kMillisecond)->UseRealTime();

constexpr std::int64_t kDecodeSteps = 160, kRoundSteps = 4;

// range(0) sequences of range(1) tokens, one new token each.
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
  const double b = batch, n = context + 0.5 * kDecodeSteps, weights = work.weights + work.head_weights;
  Rounds rounds([&](const MachineRates& rates) {
    const auto least = [&](double flops, double floats) {
      return std::max(flops / rates.gemm_flops_per_s, 4 * floats / rates.read_bytes_per_s);
    };
    return kRoundSteps * (least(b * 2 * weights, weights) + least(work.attention_flops(b * n), 2 * b * n * work.layers * work.kv_width));
  });
  std::int64_t step = 0;
  for (auto _ : state) {
    if (step % kRoundSteps == 0) rounds.begin();
    const std::vector<std::int32_t> positions(sequences.size(), sequences[0].seen_tokens);
    cache.begin_step(pieces);
    const std::vector<float> hidden = probe_model().forward({next, positions}, cache);
    cache.end_step(hidden);
    benchmark::DoNotOptimize(probe_model().logits(hidden).data());
    if (++step % kRoundSteps != 0) continue;
    state.PauseTiming();
    rounds.end();
    state.ResumeTiming();
  }
  state.counters["tokens_per_s"] = benchmark::Counter(b * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  rounds.show(state);
}
BENCHMARK(BM_EngineDecode)->ArgsProduct({{1, 8, 32}, {512, 3500}})->Unit(benchmark::kMicrosecond)->UseRealTime()->Iterations(kDecodeSteps);

}  // namespace

}  // namespace kvlab
