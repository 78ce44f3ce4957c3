#include "policies/kv/scorer/scorer_wrapper.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// For the trigger `scope`. Only the inner scorer's first stage runs.
class ScopeScorer final : public Scorer {
 public:
  explicit ScopeScorer(Params& p) {
    auto [name, parameters] = p.named("prompt", "window_attention", "scorer that cuts the prompt");
    if (p.is_describing()) return;
    prompt_ = ScorerRegistry::make(name, parameters, "scorer");
    if (const std::string why = why_not_inside({.wrapper = "scope", .refines = false}, *prompt_, name); !why.empty())
      p.fail_at("prompt", why);
  }

  [[nodiscard]] Needs needs() const override {
    Needs needs = prompt_->needs();
    needs.step_queries = true;
    return needs;
  }
  [[nodiscard]] std::int32_t num_words() const override { return prompt_->num_words(); }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return prompt_->refuses(model); }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return prompt_->layer_kind(layer); }
  [[nodiscard]] TakesWeights takes_weights() const override { return prompt_->takes_weights(); }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override { prompt_->set_weights(weights); }
  void forget(std::int32_t index) override { prompt_->forget(index); }
  [[nodiscard]] Protected protects() const override { return prompt_->protects(); }

  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return prompt_->num_words() == 0; }
  void bind(std::int32_t first_word) override {
    Scorer::bind(first_word);
    prompt_->bind(first_word);
  }

  void observe(LayerStep& step) override { prompt_->observe(step); }

  void score(LayerStep& step, float* scores) override {
    std::vector<Queries> current = last_queries(step.in.step, 1, step.model);
    bool all_decode = true, any_decode = false;
    for (std::size_t s = 0; s < current.size(); ++s) {
      if (!step.seqs[s].decoding()) current[s].count = 0;
      any_decode |= step.seqs[s].decoding();
      all_decode &= step.seqs[s].decoding();
    }
    if (!all_decode) prompt_->score(step, scores);
    if (!any_decode) return;
    clear_scores(step, scores, true);
    step.ops(AttentionStats{.kv = step.kv, .queries = current.data(), .sum = scores});
  }

 private:
  std::unique_ptr<Scorer> prompt_;
};

KVLAB_REGISTER(Scorer, ScopeScorer, "scope", "a scorer of its own for the prompt, the current query's attention for decoded tokens",
               "SCOPE: Wu et al. 2024, arXiv:2412.13649");

}  // namespace

}  // namespace kvlab
