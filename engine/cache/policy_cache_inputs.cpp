// Layer inputs for a PolicyCache's policy.
#include "engine/cache/policy_cache_group.h"

namespace kvlab {

// Keeps the previous layer's inputs, which the model overwrites, for guessed queries.
void PolicyCache::keep_inputs(const float* hidden) {
  std::int64_t tokens = 0;
  for (const auto& g : groups_)
    for (const SeqStep& seq : g->seqs) tokens += seq.new_tokens;
  hidden_before_.swap(hidden_now_);
  hidden_now_.assign(hidden, hidden + tokens * shape_.hidden_dim);
}

void PolicyCache::observe_inputs(std::int32_t layer, const float* hidden, const float* q, const float* k) {
  const Needs& needs = policy_.needs();
  const std::int64_t q_width = std::int64_t{shape_.q_heads} * shape_.head_dim, kv_width = std::int64_t{shape_.kv_heads} * shape_.head_dim;
  if (needs.guessed_query) keep_inputs(hidden);
  for (const auto& g : groups_) {
    for (std::size_t s = 0; s < g->seqs.size(); ++s) {
      const SeqStep& seq = g->seqs[s];
      const std::int64_t first = g->first[s];
      EngineSequence::Memory& memory = g->sequences[s]->memory[place(layer)];
      g->observer->at(layer, s).hidden = hidden + first * shape_.hidden_dim;
      if (needs.guessed_query && layer > 0) g->observer->at(layer, s).hidden_before = hidden_before_.data() + first * shape_.hidden_dim;
      if (needs.pre_rope_keys) memory.pre_k.append(k + first * kv_width, seq.new_tokens * kv_width);
      if (!needs.pre_rope_queries || seq.decoding()) continue;
      if (memory.pre_q == nullptr) memory.pre_q = std::make_shared<TensorArray<float>>(model_->memory());
      const std::int64_t in_prompt = std::min(seq.end(), seq.prompt_tokens) - seq.seen_tokens;
      memory.pre_q->append(q + first * q_width, in_prompt * q_width);
    }
  }
}

}  // namespace kvlab
