#include "engine/backend/engine_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "engine/device/device_model.h"
#include "engine/model/record.h"
#include "engine/model/transformer.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/model/sampling/sampling.h"

namespace kvlab {

namespace {

// One after another in a batch; none in a prompt that loses tokens.
class HostsTogether final : public AttentionHost {
 public:
  explicit HostsTogether(const ModelConfig& config) : hidden_(config.hidden_dim), q_(config.q_width()), kv_(config.kv_width()) {}
  void add(AttentionHost& host, std::int32_t tokens) { hosts_.push_back(&host), tokens_.push_back(tokens); }

  [[nodiscard]] std::span<const std::int32_t> pieces() const override { return tokens_; }
  void before_rope(std::int32_t layer, const float* hidden, const float* q, const float* k) override {
    for_each([&](AttentionHost& host, std::int64_t t) { host.before_rope(layer, hidden + t * hidden_, q + t * q_, k + t * kv_); });
  }
  void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) override {
    for_each([&](AttentionHost& host, std::int64_t t) { host.attend(layer, q + t * q_, k + t * kv_, v + t * kv_, out + t * q_); });
  }

 private:
  void for_each(const auto& f) {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < hosts_.size(); ++i) f(*hosts_[i], first), first += tokens_[i];
  }

  std::int64_t hidden_, q_, kv_;
  std::vector<AttentionHost*> hosts_;
  std::vector<std::int32_t> tokens_;
};

class CpuModel final : public EngineModel {
 public:
  explicit CpuModel(Transformer model) : model_(std::move(model)) {}

  [[nodiscard]] const ModelConfig& config() const override { return model_.config(); }
  [[nodiscard]] std::string_view backend() const override { return "cpu"; }
  [[nodiscard]] ElementType kv_type() const override { return ElementType::kF32; }
  [[nodiscard]] const Transformer* transformer() const override { return &model_; }
  [[nodiscard]] std::unique_ptr<PolicyCache> make_cache(const Recipe& recipe, const PolicyCache::Options& options) const override {
    return std::make_unique<PolicyCache>(model_, recipe, options);
  }

  std::vector<float> forward(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                             std::span<const std::int32_t> rows) const override {
    cache.begin_step(pieces);
    const std::vector<float> hidden = model_.forward(batch, cache);
    cache.end_step(hidden);
    return rows_of(hidden, rows);
  }
  [[nodiscard]] std::vector<std::vector<float>> forward_together(std::span<const CacheStep> steps) const override {
    if (steps.size() < 2) return EngineModel::forward_together(steps);
    HostsTogether hosts(config());
    std::vector<std::int32_t> ids, positions;
    for (const CacheStep& s : steps) {
      hosts.add(*s.cache, static_cast<std::int32_t>(s.batch.ids.size()));
      ids.insert(ids.end(), s.batch.ids.begin(), s.batch.ids.end());
      positions.insert(positions.end(), s.batch.positions.begin(), s.batch.positions.end());
      s.cache->begin_step(s.pieces);
    }
    const std::vector<float> all = model_.forward({ids, positions}, hosts);
    std::vector<std::vector<float>> chosen;
    std::span<const float> left = all;
    for (const CacheStep& s : steps) {
      const std::span<const float> hidden = left.first(s.batch.ids.size() * width());
      s.cache->end_step(hidden);
      chosen.push_back(rows_of(hidden, s.rows));
      left = left.subspan(hidden.size());
    }
    return chosen;
  }
  [[nodiscard]] std::vector<float> head(std::span<const float> hidden) const override { return model_.logits(hidden); }
  std::vector<float> step(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                          std::span<const std::int32_t> rows) const override {
    return head(forward(cache, pieces, batch, rows));
  }

  std::vector<float> recorded_step(PolicyCache& cache, const StepPiece& piece, const TokenBatch& batch, const RecordOptions& options,
                                   std::vector<LayerTensors>& layers) const override {
    RecordingHost host(cache, config(), options, piece.new_tokens, layers);
    cache.begin_step({&piece, 1});
    const std::vector<float> hidden = model_.forward(batch, host);
    cache.end_step(hidden);
    return head(std::span(hidden).last(width()));
  }
  [[nodiscard]] std::vector<float> output_weights(std::int32_t layer) const override {
    const Weight& o = model_.weights().layers[static_cast<std::size_t>(layer)].o;
    return {o.begin(), o.end()};
  }

  std::vector<std::int32_t> sample_step(PolicyCache& cache, std::span<const StepPiece> pieces, const TokenBatch& batch,
                                        std::span<const Draw> draws) const override {
    std::vector<std::int32_t> rows, tokens(draws.size());
    std::vector<float> temperature;
    std::vector<std::uint64_t> key;
    for (const Draw& draw : draws) rows.push_back(draw.row), temperature.push_back(draw.temperature), key.push_back(draw.key);
    const std::vector<float> hidden = forward(cache, pieces, batch, rows);
    if (draws.empty()) return tokens;
    const std::vector<float> logits = head(hidden);
    run_cpu(Sampling{logits.data(), temperature.data(), key.data(), tokens.data(), static_cast<std::int64_t>(draws.size()),
                     config().vocab_size});
    return tokens;
  }

  [[nodiscard]] PromptTensors run_prompt(std::span<const std::int32_t> ids, const Needs& needs, std::span<const std::string> passes,
                                         const RecordOptions& options) const override {
    return kvlab::run_prompt(model_, ids, needs, passes, options);
  }

 private:
  [[nodiscard]] std::size_t width() const { return static_cast<std::size_t>(config().hidden_dim); }
  [[nodiscard]] std::vector<float> rows_of(std::span<const float> hidden, std::span<const std::int32_t> rows) const {
    std::vector<float> chosen;
    chosen.reserve(rows.size() * width());
    for (const std::int32_t row : rows) {
      const std::span<const float> one = hidden.subspan(static_cast<std::size_t>(row) * width(), width());
      chosen.insert(chosen.end(), one.begin(), one.end());
    }
    return chosen;
  }
  Transformer model_;
};

class Steps {
 public:
  Steps(const EngineModel& model, PolicyCache& cache, EngineSequence& sequence, const RecordOptions& options, PolicyRecord& record)
      : model_(model), cache_(cache), sequence_(sequence), options_(options), record_(record) {}

  std::int32_t run(std::int32_t tokens) {
    const std::vector<std::int32_t> positions = consecutive(sequence_.seen_tokens, tokens);
    const auto ids = std::span(sequence_.ids).subspan(static_cast<std::size_t>(sequence_.seen_tokens), static_cast<std::size_t>(tokens));
    const std::vector<float> logits = model_.recorded_step(cache_, {&sequence_, tokens}, {ids, positions}, options_, record_.trace.layers);
    record_.resident.push_back(cache_.resident(sequence_));
    return greedy_token(logits, model_.config().vocab_size);
  }

 private:
  const EngineModel& model_;
  PolicyCache& cache_;
  EngineSequence& sequence_;
  const RecordOptions& options_;
  PolicyRecord& record_;
};

// Adds the policy's needs, which a replay has too.
RecordOptions with_needs(RecordOptions options, const Needs& needs) {
  options.pre_rope |= needs.pre_rope_queries || needs.pre_rope_keys;
  options.w_o |= needs.output_weights;
  options.hidden |= needs.hidden || needs.pass_hidden || needs.guessed_query;
  options.w_q |= needs.guessed_query;
  return options;
}

}  // namespace

std::vector<std::vector<float>> EngineModel::forward_together(std::span<const CacheStep> steps) const {
  std::vector<std::vector<float>> all;
  for (const CacheStep& s : steps) all.push_back(forward(s));
  return all;
}

std::vector<float> EngineModel::logits(std::span<const std::int32_t> ids, std::int32_t chunk_tokens) const {
  const auto n = static_cast<std::int32_t>(ids.size()), chunk = chunk_tokens > 0 ? chunk_tokens : std::max(n, 1);
  const std::unique_ptr<PolicyCache> cache = make_cache(load_recipe("full"), {});
  EngineSequence sequence;
  sequence.prompt_tokens = n;
  cache->start(sequence);
  const std::vector<std::int32_t> positions = consecutive(0, n);
  std::vector<float> all;
  for (std::int32_t begin = 0; begin < n; begin += chunk) {
    const auto at = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(std::min(chunk, n - begin));
    const StepPiece piece{&sequence, static_cast<std::int32_t>(count)};
    const std::vector<float> some =
        step(*cache, {&piece, 1}, {ids.subspan(at, count), std::span(positions).subspan(at, count)}, std::span(positions).first(count));
    all.insert(all.end(), some.begin(), some.end());
  }
  cache->release(sequence);
  return all;
}

void require_recipe(std::string_view backend, const Recipe& recipe, const Needs& needs) {
  if (backend == "cpu") return;
  refuse_cpu_only(recipe, needs);
  refuse_extra_pass(recipe, needs);
}

void require_backend(std::string_view backend) {
  if (backend != "cpu" && backend != "cuda")
    throw InputError("unknown backend '" + std::string(backend) + "'" + suggestion(backend, {"cpu", "cuda"}));
  if (backend == "cpu" || num_gpus() > 0) return;
  throw InputError("backend cuda: " + std::string(cuda_backend() == CudaBackend::kNone ? "" : "no GPU: ") + why_no_gpu());
}

std::unique_ptr<EngineModel> make_engine_model(std::string_view backend, const std::string& dir, const GpuOptions& gpu) {
  require_backend(backend);
  if (backend == "cuda") {
    const ModelConfig config = read_model_config(dir);
    return make_device_model(config, WeightReader(dir, config), gpu);
  }
  return make_cpu_model(Transformer::load(dir));
}

std::unique_ptr<EngineModel> make_random_model(std::string_view backend, const ModelConfig& config, const GpuOptions& gpu) {
  require_backend(backend);
  if (backend == "cuda") return make_random_device_model(config, gpu);
  return make_cpu_model(Transformer(config, random_weights(config, 1)));
}

std::unique_ptr<EngineModel> make_cpu_model(Transformer model) { return std::make_unique<CpuModel>(std::move(model)); }

PolicyRecord record_with_policy(const EngineModel& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& asked,
                                const Recipe& recipe, const PolicyCache::Options& cache_options, std::int32_t question_begin) {
  const std::unique_ptr<PolicyCache> cache = model.make_cache(recipe, cache_options);
  const Needs& needs = cache->policy().needs();
  const RecordOptions options = with_needs(asked, needs);
  PolicyRecord record;
  record.trace = empty_trace(model.config(), prompt_ids.size(), options);
  record.trace.question_begin = question_begin;
  for (std::int32_t l = 0; options.w_o && l < model.config().layers; ++l)
    record.trace.layers[static_cast<std::size_t>(l)].w_o = model.output_weights(l);
  if (model.transformer() != nullptr) add_query_weights(*model.transformer(), options, record.trace);
  require_recipe(model.backend(), recipe, needs);
  if (recipe.prunes())
    throw InputError("recipe '" + recipe.name + "' " + (recipe.rewrites() ? "rewrites" : "prunes") +
                     " prompts, and later layers have no tensors of pruned tokens to be recorded; record "
                     "with recipe 'full'");
  cache->ops().keep_log(true);
  EngineSequence sequence;
  sequence.prompt_tokens = record.trace.prompt_tokens;
  sequence.question_begin = question_begin;
  sequence.ids.assign(prompt_ids.begin(), prompt_ids.end());
  cache->start(sequence);
  Steps steps(model, *cache, sequence, options, record);
  const std::int32_t chunk = options.chunk_tokens > 0 ? options.chunk_tokens : sequence.prompt_tokens;
  std::int32_t next = 0;
  while (sequence.seen_tokens < sequence.prompt_tokens) {
    next = steps.run(std::min(chunk, sequence.prompt_tokens - sequence.seen_tokens));
    record.trace.chunk_ends.push_back(sequence.seen_tokens);
  }
  if (!needs.pass.empty()) record.trace.passes[needs.pass] = *sequence.pass;
  for (std::size_t i = 0; i < options.continuation.size() + static_cast<std::size_t>(options.decode_tokens); ++i) {
    sequence.ids.push_back(i < options.continuation.size() ? options.continuation[i] : next);
    next = steps.run(1);
  }
  record.trace.ids = sequence.ids;
  record.trace.num_tokens = sequence.seen_tokens;
  record.log = cache->ops().log();
  record.kept = cache->positions(sequence);
  return record;
}

AttentionTrace record(const EngineModel& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& options) {
  if (model.transformer() != nullptr) return record(*model.transformer(), prompt_ids, options);
  AttentionTrace trace = record_with_policy(model, prompt_ids, options, load_recipe("full")).trace;
  if (options.passes.empty()) return trace;
  const PromptTensors prompt = model.run_prompt(prompt_ids, {}, options.passes, options);
  for (const auto& [name, pass] : prompt.passes) trace.passes[name] = *pass;
  return trace;
}

}  // namespace kvlab
