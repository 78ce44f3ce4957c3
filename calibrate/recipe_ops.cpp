#include "calibrate/recipe_ops.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "base/error.h"
#include "kernels/device/cuda/events.h"
#include "kernels/device/cuda/memory.h"
#include "policies/kv/cache/kv_keeper.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "sim/kv_cost/shape_run.h"

namespace kvlab {

namespace {

using Names = std::set<std::string>;

std::map<std::string, Names> operations_by_recipe(std::string_view backend, const ModelConfig& model) {
  std::map<std::string, Names> all;
  for (const std::string& name : recipe_names()) {
    try {
      const Recipe recipe = timed_recipe(load_recipe(name));
      require_timed(backend, recipe, model);
      all[name] = operations_of(recipe, model);
    } catch (const InputError&) {  // it does not run there, or needs tensors
    }
  }
  return all;
}

std::size_t count_new(const Names& names, const Names& known) {
  return static_cast<std::size_t>(std::count_if(names.begin(), names.end(), [&](const std::string& n) { return !known.contains(n); }));
}

// With expected counts where data decides; a footprint charges their bounds, at which some recipes drop nothing.
Names operations_of_prompt(const Recipe& recipe, const ModelShape& shape, std::int32_t tokens) {
  ExpectedRun run(recipe, shape);
  ShapeRun::Seq seq{0, tokens, tokens, {0}};
  seq.inputs = input_sizes(run.shapes().policy().needs(), seq.as_step());
  Names names;
  for (const OpCall& call : run.step(seq).calls) names.emplace(call.op);
  return names;
}

struct TimedCall {
  OpCall call;
  double seconds = 0;
};

// On a GPU between events, queued during a pause.
class CallTimes final : public OpClock {
 public:
  explicit CallTimes(CudaContext* cuda) : cuda_(cuda), timer_(cuda != nullptr ? std::make_unique<CudaTimer>() : nullptr) {}
  void begin() override {
    if (cuda_ == nullptr) {
      begin_ = Clock::now();
      return;
    }
    constexpr double kPause = 1e-4;
    timer_->hold(kPause, cuda_->stream());
    timer_->start(cuda_->stream());
  }
  void end(const OpCall& call) override {
    if (cuda_ != nullptr) timer_->stop(cuda_->stream());
    const double seconds = cuda_ != nullptr ? timer_->seconds() : std::chrono::duration<double>(Clock::now() - begin_).count();
    if (call.op == kAtRest)
      rest_seconds_ += seconds;
    else if (call.bytes > 0 && call.op != "attend")
      add(std::string(call.op), call, seconds);
  }
  void add(const std::string& op, const OpCall& call, double seconds) { calls_[op].push_back({call, seconds}); }
  // kAtRest seconds since the last call.
  double take_rest_seconds() { return std::exchange(rest_seconds_, 0); }
  [[nodiscard]] const std::map<std::string, std::vector<TimedCall>>& calls() const { return calls_; }

 private:
  using Clock = std::chrono::steady_clock;
  CudaContext* cuda_;
  std::unique_ptr<CudaTimer> timer_;
  Clock::time_point begin_;
  double rest_seconds_ = 0;
  std::map<std::string, std::vector<TimedCall>> calls_;
};

class Steps {
 public:
  Steps(const EngineModel& model, PolicyCache& cache, std::uint64_t seed) : model_(model), cache_(cache), random_(seed) {}

  // `times`: null: untimed.
  void run(std::int32_t prompt_tokens, std::int32_t count, std::int32_t decode_steps, CallTimes* times, const std::atomic<bool>& stop) {
    cache_.ops().time_with(times);
    std::vector<EngineSequence> sequences(static_cast<std::size_t>(count));
    for (std::int32_t s = 0; s < count; ++s) begin(sequences[static_cast<std::size_t>(s)], s, prompt_tokens, decode_steps);
    for (EngineSequence& s : sequences)
      if (!stop) step(std::span(&s, 1), prompt_tokens);
    for (std::int32_t i = 0; i < decode_steps && !stop; ++i) {
      const OpCall resting = at_rest(sequences);
      if (times != nullptr) times->take_rest_seconds();
      step(sequences, 1);
      if (times != nullptr && cache_.may_rest()) times->add(at_rest_of(cache_.policy().recipe().name), resting, times->take_rest_seconds());
    }
    for (EngineSequence& s : sequences) cache_.release(s);
  }

 private:
  [[nodiscard]] OpCall at_rest(std::span<const EngineSequence> sequences) const {
    OpCall call{kAtRest};
    for (const EngineSequence& s : sequences)
      for (const KvStore::Sequence& layer : s.rows)
        for (const std::int32_t len : layer.len) ++call.rows, call.tokens += len;
    const ModelShape& shape = cache_.shape();
    call.bytes = 2 * call.tokens * shape.head_dim * shape.kv_bytes;
    return call;
  }
  void begin(EngineSequence& s, std::int32_t index, std::int32_t prompt_tokens, std::int32_t decode_steps) {
    s.index = index;
    s.prompt_tokens = prompt_tokens;
    s.question_begin = cache_.policy().needs().assumed_question(prompt_tokens);
    std::uniform_int_distribution<std::int32_t> id(0, model_.config().vocab_size - 1);
    s.ids.resize(static_cast<std::size_t>(prompt_tokens + decode_steps));
    for (std::int32_t& i : s.ids) i = id(random_);
    cache_.start(s);
  }
  void step(std::span<EngineSequence> sequences, std::int32_t tokens) {
    std::vector<StepPiece> pieces;
    std::vector<std::int32_t> ids, positions;
    for (EngineSequence& s : sequences) {
      pieces.push_back({&s, tokens});
      for (std::int32_t i = 0; i < tokens; ++i) {
        positions.push_back(s.seen_tokens + i);
        ids.push_back(s.ids[static_cast<std::size_t>(positions.back())]);
      }
    }
    static_cast<void>(model_.sample_step(cache_, pieces, {ids, positions}, {}));
  }

  const EngineModel& model_;
  PolicyCache& cache_;
  std::mt19937_64 random_;
};

RecipeCalls summary_of(const std::string& op, std::span<const TimedCall> calls) {
  const auto n = static_cast<std::int64_t>(calls.size());
  std::vector<double> seconds;
  RecipeCalls sum{op, {}};
  Measured& m = sum.measured;
  for (const TimedCall& c : calls) {
    seconds.push_back(c.seconds);
    m.rows += c.call.rows, m.tokens += c.call.tokens, m.outputs += c.call.outputs, m.bytes += c.call.bytes, m.flops += c.call.flops;
  }
  m.rows /= n, m.tokens /= n, m.outputs /= n, m.bytes /= n, m.flops /= n;
  std::sort(seconds.begin(), seconds.end());
  m.seconds = std::max(1e-12, seconds[seconds.size() / 2]);
  m.spread_frac = (seconds[seconds.size() * 3 / 4] - seconds[seconds.size() / 4]) / m.seconds;
  m.mean_frac = std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(n) / m.seconds;
  return sum;
}

// Merges calls with bytes and FLOPs within a tenth of the smallest's.
std::vector<RecipeCalls> points_of(const std::string& op, std::vector<TimedCall> calls) {
  constexpr double kAlike = 1.1;
  const auto is_near = [](std::int64_t a, std::int64_t b) {
    return static_cast<double>(std::max(a, b)) <= kAlike * static_cast<double>(std::min(a, b));
  };
  std::sort(calls.begin(), calls.end(), [](const TimedCall& a, const TimedCall& b) { return a.call.bytes < b.call.bytes; });
  std::vector<std::vector<TimedCall>> points;
  for (const TimedCall& c : calls) {
    const auto at = std::find_if(points.begin(), points.end(), [&](const auto& p) {
      return is_near(p.front().call.bytes, c.call.bytes) && is_near(p.front().call.flops, c.call.flops);
    });
    if (at == points.end())
      points.push_back({c});
    else
      at->push_back(c);
  }
  std::vector<RecipeCalls> all;
  for (const auto& point : points) all.push_back(summary_of(op, point));
  return all;
}

// The budget must leave what the recipe always keeps. Throws if no length does.
std::vector<std::int32_t> lengths_for(const KvPolicy& policy, const std::vector<std::int32_t>& prompt_tokens) {
  std::vector<std::int32_t> lengths;
  for (const std::int32_t n : prompt_tokens) {
    try {
      policy.refuse_small_budget({0, 0, n, n, -1});
      lengths.push_back(n);
    } catch (const InputError&) {
      if (lengths.empty() && n == prompt_tokens.back()) throw;
    }
  }
  return lengths;
}

}  // namespace

Recipe timed_recipe(const Recipe& recipe) {
  constexpr std::int32_t kBudget = 256;
  return recipe.has_budget || !why_no_budget(recipe).empty() ? recipe : load_recipe(recipe.name, kBudget);
}

std::set<std::string> operations_of(const Recipe& recipe, const ModelConfig& m) {
  constexpr std::int32_t kPrompt = 8192, kDecodeSteps = 4, kBytes = 4, kBlock = 16;  // as calibration runs recipes
  const ModelShape shape{m.layers, m.q_heads, m.kv_heads, m.head_dim, m.hidden_dim, kBytes, {m.rope_base, m.rope_scaling}};
  RecipeFootprint footprint(recipe, shape, kBlock, KvReads::kUnpacked);
  SeqState seq{.prompt_tokens = kPrompt};
  Names names = operations_of_prompt(recipe, shape, kPrompt);
  for (std::int32_t step = 0; step <= kDecodeSteps; ++step) {
    PolicyWork work;
    SeqState batch[] = {seq.taking(step == 0 ? kPrompt : 1)};
    const FootprintStep done = footprint.step(batch[0]);
    footprint.charge(batch, work);
    for (const PolicyOp& op : work.ops) names.emplace(op.name);
    seq = done.after(batch[0]);
  }
  return names;
}

std::vector<std::string> greedy_cover(const std::map<std::string, std::set<std::string>>& sets) {
  std::vector<std::string> chosen;
  Names known;
  while (true) {
    const auto best = std::max_element(
        sets.begin(), sets.end(), [&](const auto& a, const auto& b) { return count_new(a.second, known) < count_new(b.second, known); });
    if (best == sets.end() || count_new(best->second, known) == 0) return chosen;
    chosen.push_back(best->first);
    known.insert(best->second.begin(), best->second.end());
  }
}

std::vector<std::string> covering_recipes(std::string_view backend, const ModelConfig& model) {
  return greedy_cover(operations_by_recipe(backend, model));
}

void require_timed(std::string_view backend, const Recipe& recipe, const ModelConfig& m) {
  for (const char* const host : {"engine", "cost"})
    if (!recipe.runs_in(host))
      throw InputError(fmt::format("recipe '{}' does not run in {}, so that times of its operations are of no use; it runs in: {}",
                                   recipe.name, host == std::string_view("cost") ? "simulations" : "the engine",
                                   fmt::join(recipe.hosts, ", ")));
  constexpr std::int32_t kBytes = 4;
  const KvPolicy policy(recipe, {m.layers, m.q_heads, m.kv_heads, m.head_dim, m.hidden_dim, kBytes, {m.rope_base, m.rope_scaling}});
  require_recipe(backend, recipe, policy.needs());
}

std::vector<RecipeCalls> time_recipe(const EngineModel& model, const Recipe& recipe, const RecipeSteps& steps,
                                     const std::atomic<bool>& stop) {
  PolicyCache::Options options;
  options.seed = steps.seed;
  options.packs = options.tiers = true;
  const std::unique_ptr<PolicyCache> cache = model.make_cache(recipe, options);
  CallTimes times(cache->pages().memory().cuda());
  Steps run(model, *cache, steps.seed);
  const std::vector<std::int32_t> lengths = lengths_for(cache->policy(), steps.prompt_tokens);
  run.run(lengths.front(), 1, 2, nullptr, stop);  // warm-up
  for (const std::int32_t n : lengths)
    for (const std::int32_t count : steps.sequences)
      if (!stop) run.run(n, count, steps.decode_steps, &times, stop);
  std::vector<RecipeCalls> all;
  for (const auto& [op, calls] : times.calls())
    for (RecipeCalls& point : points_of(op, calls)) all.push_back(std::move(point));
  return all;
}

ModelConfig engine_shape(const ModelSpec& m) {
  const char* const why = m.is_moe()                                            ? "experts"
                          : m.learned_positions                                 ? "learned positions"
                          : !m.gated_mlp                                        ? "an MLP without a gate"
                          : m.norm_bias                                         ? "LayerNorm"
                          : m.embedding_width != m.hidden                       ? "a projected embedding"
                          : m.norms != 2                                        ? "other norms than two in a layer"
                          : m.has_sinks                                         ? "attention sinks"
                          : m.qk_norm && m.qk_norm_parameters != 2 * m.head_dim ? "a norm over all query heads"
                          : !m.quantization.empty()                             ? "quantized weights"
                                                                                : nullptr;
  if (why != nullptr) throw InputError(fmt::format("{} has {}, which the engine does not compute", m.name, why));
  const auto narrow = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  ModelConfig c;
  c.name = m.name, c.type = "llama";
  c.layers = narrow(m.layers), c.hidden_dim = narrow(m.hidden), c.intermediate_dim = narrow(m.intermediate);
  c.q_heads = narrow(m.q_heads), c.kv_heads = narrow(m.kv_heads), c.head_dim = narrow(m.head_dim);
  c.vocab_size = narrow(m.vocabulary), c.max_tokens = narrow(m.max_tokens);
  c.rope_base = 10'000, c.norm_epsilon = 1e-5F;
  c.tied_head = m.tied_embeddings, c.qk_norm = m.qk_norm;
  c.qkv_bias = m.qkv_bias, c.o_bias = m.o_bias, c.mlp_bias = m.mlp_bias;
  if (m.sliding_window > 0) c.windows.assign(static_cast<std::size_t>(m.layers), narrow(m.sliding_window));
  return c;
}

}  // namespace kvlab
