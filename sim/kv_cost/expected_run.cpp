#include "sim/kv_cost/expected_run.h"

namespace kvlab {

namespace {

SeqStep step_of(const ShapeRun::Seq& seq) { return {0, seq.seen_tokens, seq.new_tokens, seq.prompt_tokens, -1}; }

}  // namespace

ExpectedRun::ExpectedRun(const Recipe& recipe, const ModelShape& model)
    : budget_(recipe.budget), trigger_(recipe.make_trigger()), counts_(recipe, model), shapes_(recipe, model, &counts_) {}

// Mean tokens kept by layers cut in this step; <= 0: none is cut.
std::int32_t ExpectedRun::cut_target(const ShapeRun::Seq& seq) const {
  if (shapes_.policy().has_shares()) return shapes_.targets(seq).most;
  return shapes_.policy().target(step_of(seq), seq.held.front() + seq.new_tokens).value_or(0);
}

ShapeRun::Result ExpectedRun::step(const ShapeRun::Seq& seq) {
  counts_.set_target(cut_target(seq), trigger_->full(step_of(seq), budget_), seq.seen_tokens + seq.new_tokens);
  return shapes_.step(std::span(&seq, 1));
}

ShapeRun::Result ExpectedRun::step_at_bounds(std::span<const ShapeRun::Seq> batch) {
  counts_.set_target(0, 0, 0);
  return shapes_.step(batch);
}

}  // namespace kvlab
