#include "engine/cache/policy_record.h"

#include <algorithm>
#include <numeric>

namespace kvlab {

namespace {

// Passes everything on to a cache and notes it down.
class RecordingHost final : public AttentionHost {
 public:
  RecordingHost(AttentionHost& inner, const ModelConfig& config, const RecordOptions& options, std::vector<LayerTensors>& layers)
      : inner_(inner), config_(config), options_(options), layers_(layers) {}
  void set_tokens(std::int64_t n) { tokens_ = n; }

  void before_rope(std::int32_t layer, const float* hidden, const float* q, const float* k) override {
    LayerTensors& to = layers_[static_cast<std::size_t>(layer)];
    if (options_.hidden) add(to.hidden, hidden, config_.hidden_dim);
    if (options_.pre_rope) add(to.pre_q, q, q_width()), add(to.pre_k, k, kv_width());
    inner_.before_rope(layer, hidden, q, k);
  }
  void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) override {
    LayerTensors& to = layers_[static_cast<std::size_t>(layer)];
    add(to.q, q, q_width()), add(to.k, k, kv_width()), add(to.v, v, kv_width());
    inner_.attend(layer, q, k, v, out);
  }

 private:
  [[nodiscard]] std::int64_t q_width() const { return std::int64_t{config_.q_heads} * config_.head_dim; }
  [[nodiscard]] std::int64_t kv_width() const { return std::int64_t{config_.kv_heads} * config_.head_dim; }
  void add(std::vector<float>& to, const float* from, std::int64_t width) const { to.insert(to.end(), from, from + tokens_ * width); }

  AttentionHost& inner_;
  const ModelConfig& config_;
  const RecordOptions& options_;
  std::vector<LayerTensors>& layers_;
  std::int64_t tokens_ = 0;
};

// The steps of one sequence.
class Steps {
 public:
  Steps(const Transformer& model, PolicyCache& cache, EngineSequence& sequence, const RecordOptions& options, PolicyRecord& record)
      : model_(model), cache_(cache), sequence_(sequence), record_(record), host_(cache, model.config(), options, record.trace.layers) {}

  // Answers the most likely next token.
  std::int32_t run(std::int32_t tokens) {
    std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
    std::iota(positions.begin(), positions.end(), sequence_.seen_tokens);
    const auto ids = std::span(sequence_.ids).subspan(static_cast<std::size_t>(sequence_.seen_tokens), static_cast<std::size_t>(tokens));
    const StepPiece piece{&sequence_, tokens};
    host_.set_tokens(tokens);
    cache_.begin_step({&piece, 1});
    const std::vector<float> hidden = model_.forward({ids, positions}, host_);
    cache_.end_step(hidden);
    record_.resident.push_back(cache_.resident(sequence_));
    const ModelConfig& c = model_.config();
    return greedy_token(model_.logits(std::span(hidden).last(static_cast<std::size_t>(c.hidden_dim))), c.vocab_size);
  }

 private:
  const Transformer& model_;
  PolicyCache& cache_;
  EngineSequence& sequence_;
  PolicyRecord& record_;
  RecordingHost host_;
};

}  // namespace

PolicyRecord record_with_policy(const Transformer& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& options,
                                const Recipe& recipe, const PolicyCache::Options& cache_options, std::int32_t question_begin) {
  PolicyRecord record;
  record.trace = empty_trace(model, prompt_ids.size(), options);
  record.trace.question_begin = question_begin;
  PolicyCache cache(model, recipe, cache_options);
  cache.ops().keep_log(true);
  EngineSequence sequence;
  sequence.prompt_tokens = record.trace.prompt_tokens;
  sequence.question_begin = question_begin;
  sequence.ids.assign(prompt_ids.begin(), prompt_ids.end());
  cache.start(sequence);
  Steps steps(model, cache, sequence, options, record);
  const std::int32_t chunk = options.chunk_tokens > 0 ? options.chunk_tokens : sequence.prompt_tokens;
  std::int32_t next = 0;
  while (sequence.seen_tokens < sequence.prompt_tokens) {
    next = steps.run(std::min(chunk, sequence.prompt_tokens - sequence.seen_tokens));
    record.trace.chunk_ends.push_back(sequence.seen_tokens);
  }
  if (!cache.policy().needs().pass.empty()) record.trace.passes[cache.policy().needs().pass] = *sequence.pass;
  for (std::size_t i = 0; i < options.continuation.size() + static_cast<std::size_t>(options.decode_tokens); ++i) {
    sequence.ids.push_back(i < options.continuation.size() ? options.continuation[i] : next);
    next = steps.run(1);
  }
  record.trace.ids = sequence.ids;
  record.trace.num_tokens = sequence.seen_tokens;
  record.log = cache.ops().log();
  record.kept = cache.positions(sequence);
  return record;
}

}  // namespace kvlab
