#include "engine/cache/engine_observer.h"

#include <algorithm>

namespace kvlab {

// Passes are in CPU memory.
std::vector<PassQueries> EngineObserver::pass_queries(const ExtraPass* pass, std::int32_t layer, Answer& a) const {
  std::vector<PassQueries> chunks;
  if (pass == nullptr) return chunks;
  const auto there = [&](const std::vector<float>& host) -> const float* {
    if (memory_.on_host()) return host.data();
    a.uploads.emplace_back(memory_).append_from_host(host.data(), static_cast<std::int64_t>(host.size()));
    return a.uploads.back().data();
  };
  const LayerTensors& tensors = pass->layers[static_cast<std::size_t>(layer)];
  const float *const q = there(tensors.q), *const k = there(tensors.k);
  const float* const hidden = needs_.pass_hidden ? there(tensors.hidden) : nullptr;
  const float* const gradient = tensors.gradient.empty() ? nullptr : there(tensors.gradient);
  for (const PassChunk& c : pass->chunks) {
    const std::int64_t begin = c.begin;
    chunks.push_back({{q + begin * model_.q_heads * model_.head_dim, c.end - c.begin, c.begin},
                      k + begin * model_.kv_heads * model_.head_dim,
                      c.ctx_begin,
                      c.ctx_end,
                      hidden == nullptr ? nullptr : hidden + begin * model_.hidden_dim,
                      gradient == nullptr ? nullptr : gradient + begin});
  }
  return chunks;
}

Observed EngineObserver::observe(std::int32_t layer) {
  answers_.push_back(std::make_unique<Answer>());
  Answer& a = *answers_.back();
  const std::int64_t q_width = std::int64_t{model_.q_heads} * model_.head_dim;
  for (std::size_t s = 0; s < seqs_.size(); ++s) {
    const SeqStep& seq = seqs_[s];
    const EngineSequence& sequence = *sequences_[s];
    const LayerTensorsOfStep& tensors = at(layer, s);
    const std::int32_t prompt_end = std::min(seq.end(), seq.prompt_tokens);
    const EngineSequence::Memory none, &memory = sequence.memory.empty() ? none : sequence.memory[static_cast<std::size_t>(layer)];
    const std::int32_t rows = tensors.rows < 0 ? seq.new_tokens : tensors.rows;
    if (needs_.step_queries) a.step.push_back({tensors.q, rows, seq.end() - rows});
    if (needs_.window_queries > 0) {
      const auto count = static_cast<std::int32_t>(memory.window.size() / q_width);
      a.window.push_back({memory.window.data(), count, prompt_end - count});
    }
    if (needs_.pre_rope_queries) a.pre_rope_queries.push_back({memory.pre_q->data(), prompt_end, 0});
    if (needs_.pre_rope_keys) a.pre_rope_keys.push_back(memory.pre_k.data());
    if (needs_.hidden) a.hidden.push_back(tensors.hidden);
    if (needs_.guessed_query && layer > 0) a.hidden_before.push_back(tensors.hidden_before);
    if (needs_.token_ids) a.ids.push_back(sequence.ids.data());
    if (!needs_.pass.empty()) a.chunks.push_back(pass_queries(sequence.pass.get(), layer, a));
  }
  for (const auto& chunks : a.chunks) a.pass.emplace_back(chunks);
  Observed in;
  in.step = a.step, in.window = a.window, in.pre_rope_queries = a.pre_rope_queries;
  in.pre_rope_keys = a.pre_rope_keys, in.hidden = a.hidden, in.hidden_before = a.hidden_before, in.ids = a.ids, in.pass = a.pass;
  if (needs_.output_weights) in.w_o = w_o_[static_cast<std::size_t>(layer)];
  if (needs_.guessed_query) in.w_q = w_q_[static_cast<std::size_t>(layer)];
  return in;
}

}  // namespace kvlab
