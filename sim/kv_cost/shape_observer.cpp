#include "sim/kv_cost/shape_observer.h"

#include <algorithm>

namespace kvlab {

InputSizes input_sizes(const Needs& needs, const SeqStep& seq) {
  InputSizes inputs;
  inputs.question_begin = needs.assumed_question(seq.prompt_tokens);
  const bool runs = runs_after_chunks(needs.pass) ? !seq.decoding() : seq.completes_prompt();
  if (runs && !needs.pass.empty()) inputs.pass = pass_shapes(needs.pass, seq.prompt_tokens, std::min(seq.end(), seq.prompt_tokens));
  return inputs;
}

ShapeObserver::ShapeObserver(const Needs& needs, std::span<const SeqStep> seqs, std::span<const InputSizes> inputs)
    : needs_(needs), no_floats_(seqs.size(), nullptr), no_ints_(seqs.size(), nullptr) {
  const auto range = [](std::int32_t begin, std::int32_t end) { return Queries{nullptr, std::max(0, end - begin), begin}; };
  for (std::size_t s = 0; s < seqs.size(); ++s) {
    const std::int32_t end = seqs[s].end(), prompt_end = std::min(end, seqs[s].prompt_tokens);
    step_.push_back(range(seqs[s].seen_tokens, end));
    window_.push_back(range(std::max(0, prompt_end - needs.window_queries), prompt_end));
    pre_rope_queries_.push_back(range(0, prompt_end));
    future_.push_back(range(end, end + inputs[s].future_tokens));
    pass_.emplace_back();
    for (const PassShape& c : inputs[s].pass)
      pass_.back().push_back({{nullptr, c.count, c.first_position}, nullptr, c.ctx_begin, c.ctx_end});
  }
  for (const auto& chunks : pass_) pass_spans_.emplace_back(chunks);
}

Observed ShapeObserver::observe(std::int32_t) {
  Observed in;
  if (needs_.step_queries) in.step = step_;
  if (needs_.window_queries > 0) in.window = window_;
  if (needs_.pre_rope_queries) in.pre_rope_queries = pre_rope_queries_;
  if (needs_.future_queries) in.future = future_;
  if (needs_.pre_rope_keys) in.pre_rope_keys = no_floats_;
  if (needs_.hidden) in.hidden = no_floats_;
  if (needs_.guessed_query) in.hidden_before = no_floats_;
  if (needs_.token_ids) in.ids = no_ints_;
  if (!needs_.pass.empty()) in.pass = pass_spans_;
  return in;
}

}  // namespace kvlab
