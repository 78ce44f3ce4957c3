#pragma once

#include <memory>

#include "policies/kv/scorer/scorer.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

// Inputs that a wrapper gives its inner scorer.
struct PassedOn {
  std::string wrapper;
  bool whole_step = true;  // false: only `needs` of LayerStep::in, no token statistics
  Needs needs = {};        // `turns`, `cpu_only`, `weights` are always met
  bool refines = true;
  bool adds_scores = false;  // infinite scores hide others
};

// First tensor of `needs` that `given` lacks, or ""; not `turns`, `cpu_only` or `weights`.
std::string first_not_given(const Needs& needs, const Needs& given);

// "" or why the wrapper cannot build on the scorer `name`, then scorers that fit and `or_else`.
std::string why_not_inside(const PassedOn& passed, const Scorer& inner, const std::string& name, const std::string& or_else = "");

// A scorer around `of`. Wrappers decide cuts_affinely, keeps_no_state, is_order_free and keeps_latest themselves.
class ScorerWrapper : public Scorer {
 public:
  [[nodiscard]] Needs needs() const override {
    Needs needs = inner_->needs();
    if (peer_ties_) needs.run_only_on_cpu(kBreaksPeerTies);
    return needs;
  }
  [[nodiscard]] std::int32_t num_words() const override { return inner_->num_words(); }
  [[nodiscard]] std::int32_t resident_words() const override { return inner_->resident_words(); }
  void bind(std::int32_t first_word) override {
    Scorer::bind(first_word);
    inner_->bind(first_word);
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return inner_->refuses(model); }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return inner_->layer_kind(layer); }
  void step_key(const SeqStep& seq, StepKey& key) const override { inner_->step_key(seq, key); }
  void whole_key(const SeqStep& seq, StepKey& key) const override { inner_->whole_key(seq, key); }
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return inner_->affine_lengths(len); }
  [[nodiscard]] EqualHeads equal_heads() const override { return inner_->equal_heads(); }
  [[nodiscard]] bool splits_heads() const override { return inner_->splits_heads(); }
  [[nodiscard]] TakesWeights takes_weights() const override { return inner_->takes_weights(); }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override { inner_->set_weights(weights); }
  void forget(std::int32_t index) override {
    Scorer::forget(index);
    inner_->forget(index);
  }
  void set_budget(const Budget& budget) override { inner_->set_budget(budget); }
  void observe(LayerStep& step) override { inner_->observe(step); }
  void score(LayerStep& step, float* scores) override { inner_->score(step, scores); }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override { inner_->refine(step, keep, scores); }
  [[nodiscard]] Protected protects() const override { return inner_->protects(); }
  [[nodiscard]] bool comparable_across_heads() const override { return inner_->comparable_across_heads(); }
  [[nodiscard]] bool ranks_after_counts() const override { return inner_->ranks_after_counts(); }
  [[nodiscard]] bool marks_tokens() const override { return inner_->marks_tokens(); }

 protected:
  // Throws InputError at `of` if the inner scorer's needs are not met. `or_else` ends the advice.
  ScorerWrapper(Params& p, const std::string& fallback, const PassedOn& passed, const std::string& or_else = "") {
    auto [name, inner] = p.named("of", fallback, "the scorer it builds on; `kvlab list scorers`");
    if (p.is_describing()) return;
    inner_ = ScorerRegistry::make(name, inner, "scorer");
    if (const std::string why = why_not_inside(passed, *inner_, name, or_else); !why.empty()) p.fail_at("of", why);
  }
  [[nodiscard]] Scorer& inner() const { return *inner_; }

  bool peer_ties_ = false;  // equal scores fall as in a peer

 private:
  std::unique_ptr<Scorer> inner_;  // null while parameters are described
};

}  // namespace kvlab
