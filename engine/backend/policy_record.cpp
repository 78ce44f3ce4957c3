#include "engine/backend/policy_record.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "engine/model/plain_cache.h"

namespace kvlab {

namespace {

class Steps {
 public:
  Steps(const EngineModel& model, PolicyCache& cache, EngineSequence& sequence, const RecordOptions& options, PolicyRecord& record)
      : model_(model), cache_(cache), sequence_(sequence), options_(options), record_(record) {}

  // Returns the most likely next token.
  std::int32_t run(std::int32_t tokens) {
    std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
    std::iota(positions.begin(), positions.end(), sequence_.seen_tokens);
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
