#pragma once

#include <memory>

#include "policies/kv/part.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

// A scorer around another one, named by `of`: passes everything on that it does not change itself.
class ScorerWrapper : public Scorer {
 public:
  [[nodiscard]] Needs needs() const override { return inner_->needs(); }
  [[nodiscard]] std::int32_t num_words() const override { return inner_->num_words(); }
  void bind(std::int32_t first_word) override {
    Scorer::bind(first_word);
    inner_->bind(first_word);
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return inner_->refuses(model); }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return inner_->layer_kind(layer); }
  [[nodiscard]] EqualHeads equal_heads() const override { return inner_->equal_heads(); }
  [[nodiscard]] bool splits_heads() const override { return inner_->splits_heads(); }
  [[nodiscard]] TakesWeights takes_weights() const override { return inner_->takes_weights(); }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override { inner_->set_weights(weights); }
  void forget(std::int32_t index) override { inner_->forget(index); }
  void set_budget(const Budget& budget) override { inner_->set_budget(budget); }
  void observe(LayerStep& step) override { inner_->observe(step); }
  void score(LayerStep& step, float* scores) override { inner_->score(step, scores); }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override { inner_->refine(step, keep, scores); }
  [[nodiscard]] Protected protects() const override { return inner_->protects(); }
  [[nodiscard]] bool comparable_across_heads() const override { return inner_->comparable_across_heads(); }
  [[nodiscard]] bool ranks_after_counts() const override { return inner_->ranks_after_counts(); }

 protected:
  ScorerWrapper(Params& p, const std::string& fallback) {
    auto [name, inner] = p.named("of", fallback, "the scorer it builds on; `kvlab list scorers`");
    if (!p.is_describing()) inner_ = ScorerRegistry::make(name, inner, "scorer");
  }
  [[nodiscard]] Scorer& inner() const { return *inner_; }

 private:
  std::unique_ptr<Scorer> inner_;  // null only while parameters are described
};

}  // namespace kvlab
