#include "sim/replay/trace_observer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "policies/kv/forward_passes.h"
#include "sim/replay/trace_rope.h"

namespace kvlab {

ModelShape shape_of(const AttentionTrace& trace, std::int32_t kv_bytes) {
  return {trace.num_layers, trace.q_heads, trace.kv_heads, trace.head_dim, trace.hidden_dim, kv_bytes, rope_of(trace)};
}

void check_needs(const Needs& needs, const AttentionTrace& trace, const std::string& recipe) {
  const LayerTensors& l = trace.layers.front();
  const auto require = [&](bool needed, bool there, const std::string& what, const std::string& how) {
    if (needed && !there)
      throw InputError(
          fmt::format("recipe '{}' observes {}, which trace '{}' does not have; record it with {}", recipe, what, trace.name, how));
  };
  require(needs.pre_rope_queries, !l.pre_q.empty(), "pre-RoPE queries", "--pre-rope");
  require(needs.pre_rope_keys, !l.pre_k.empty(), "pre-RoPE keys", "--pre-rope");
  require(needs.output_weights, !l.w_o.empty(), "the output projection", "--w-o");
  require(needs.hidden, !l.hidden.empty(), "the attention layers' inputs", "--hidden");
  require(needs.guessed_query, !l.hidden.empty() && !l.w_q.empty(), "the attention layers' inputs and the projections to queries",
          "--hidden --w-q");
  require(needs.token_ids, !trace.ids.empty(), "token ids", "ids");
  require(needs.question, trace.question_begin >= 0, "where the question begins", "a question");
  const std::string how =
      "--pass " + needs.pass + (has_backward(needs.pass) ? ", or in an experiment with 'record: {gradients: true}'" : "");
  const std::string fits = how + " (of a model with windows, a prompt that is shorter than the window together with a piece of the pass)";
  require(!needs.pass.empty(), needs.pass.empty() || trace.passes.contains(needs.pass), "the extra pass '" + needs.pass + "'", fits);
  if (!needs.pass.empty() && has_backward(needs.pass))
    require(true, !trace.passes.at(needs.pass).layers.front().gradient.empty(), "gradients of the extra pass", how);
  require(needs.pass_hidden, !needs.pass_hidden || !trace.passes.at(needs.pass).layers.front().hidden.empty(),
          "the attention layers' inputs in the extra pass", "--hidden");
  if (needs.turns) check_rotation(trace, rope_of(trace));
}

TraceObserver::TraceObserver(const AttentionTrace& trace, const Needs& needs) : trace_(trace), needs_(needs) {}

Queries TraceObserver::slice(const std::vector<float>& q, std::int32_t begin, std::int32_t end) const {
  const std::int64_t width = static_cast<std::int64_t>(trace_.q_heads) * trace_.head_dim;
  return {q.data() + begin * width, std::max(0, end - begin), begin};
}

Observed TraceObserver::observe(std::int32_t layer) {
  const LayerTensors& l = trace_.layers[static_cast<std::size_t>(layer)];
  const std::int32_t end = seq_.end(), prompt_end = std::min(end, seq_.prompt_tokens);
  Observed in;
  if (needs_.step_queries) in.step = std::span(&(step_ = slice(l.q, seq_.seen_tokens, end)), 1);
  if (needs_.window_queries > 0)
    in.window = std::span(&(window_ = slice(l.q, std::max(0, prompt_end - needs_.window_queries), prompt_end)), 1);
  if (needs_.pre_rope_queries) in.pre_rope_queries = std::span(&(pre_rope_queries_ = slice(l.pre_q, 0, prompt_end)), 1);
  if (needs_.future_queries) in.future = std::span(&(future_ = slice(l.q, end, trace_.num_tokens)), 1);
  if (needs_.pre_rope_keys) in.pre_rope_keys = std::span(&(pre_rope_keys_ = l.pre_k.data()), 1);
  if (needs_.hidden)
    in.hidden = std::span(&(hidden_ = l.hidden.data() + static_cast<std::int64_t>(seq_.seen_tokens) * trace_.hidden_dim), 1);
  if (needs_.guessed_query) {
    in.w_q = {l.w_q.data(), l.b_q.empty() ? nullptr : l.b_q.data()};
    const std::int64_t at = static_cast<std::int64_t>(seq_.seen_tokens) * trace_.hidden_dim;
    hidden_before_ = layer == 0 ? nullptr : trace_.layers[static_cast<std::size_t>(layer) - 1].hidden.data() + at;
    if (layer > 0) in.hidden_before = std::span(&hidden_before_, 1);
  }
  if (needs_.token_ids) in.ids = std::span(&(ids_ = trace_.ids.data()), 1);
  if (needs_.output_weights) in.w_o = l.w_o.data();
  if (!needs_.pass.empty()) {
    const ExtraPass& pass = trace_.passes.at(needs_.pass);
    const LayerTensors& tensors = pass.layers[static_cast<std::size_t>(layer)];
    pass_.clear();
    for (const PassChunk& c : pass.chunks)
      pass_.push_back({slice(tensors.q, c.begin, c.end),
                       tensors.k.data() + static_cast<std::int64_t>(c.begin) * trace_.kv_heads * trace_.head_dim, c.ctx_begin, c.ctx_end,
                       needs_.pass_hidden ? tensors.hidden.data() + static_cast<std::int64_t>(c.begin) * trace_.hidden_dim : nullptr,
                       tensors.gradient.empty() ? nullptr : tensors.gradient.data() + c.begin});
    pass_span_ = pass_;
    in.pass = std::span(&pass_span_, 1);
  }
  return in;
}

}  // namespace kvlab
