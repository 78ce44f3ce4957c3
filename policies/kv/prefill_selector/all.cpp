#include "base/error.h"
#include "policies/kv/prefill_selector/prefill_selector.h"
#include "policies/kv/prefill_selector/prompt_rows.h"

namespace kvlab {

namespace {

class AllOfPrompt final : public PrefillSelector {
 public:
  explicit AllOfPrompt(Params&) {}
  [[nodiscard]] bool is_dense(std::int32_t) const override { return true; }
  [[nodiscard]] bool selects_all() const override { return true; }
  std::int64_t attend(const PromptChunk&) override { throw InternalError("a dense layer's prompt is the model's own attention"); }
};

KVLAB_REGISTER(PrefillSelector, AllOfPrompt, "all", "a prompt's queries attend to every token before them",
               "Vaswani et al. 2017, arXiv:1706.03762");

// Adds a dense query's difference to the queries after it.
class DeltaCorrection final : public PrefillSelector {
 public:
  explicit DeltaCorrection(Params& p)
      : stride_(p.optional<std::int32_t>("stride_tokens", 64, 1, 1 << 16, "distance of the queries that are computed densely")) {
    auto [name, inner] = p.named("of", "a_shape", "the prefill selector that it corrects; `kvlab list prefill_selectors`");
    if (!p.is_describing()) inner_ = PrefillSelectorRegistry::make(name, inner, "prefill_selector");
  }
  [[nodiscard]] Needs needs() const override { return inner_->needs(); }
  [[nodiscard]] bool is_dense(std::int32_t layer) const override { return inner_->is_dense(layer); }
  [[nodiscard]] bool selects_all() const override { return inner_->selects_all(); }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return inner_->refuses(model); }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return inner_->layer_kind(layer); }
  void forget(std::int32_t index) override { inner_->forget(index); }

  std::int64_t attend(const PromptChunk& chunk) override {
    const std::int64_t pairs = inner_->attend(chunk);
    ChosenPrefill correction = chosen_prefill(chunk);
    correction.stride = stride_, correction.log_sum = nullptr;
    chunk.ops(correction);
    return pairs + chosen_pairs(correction);
  }

 private:
  std::int32_t stride_;
  std::unique_ptr<PrefillSelector> inner_;
};

KVLAB_REGISTER(PrefillSelector, DeltaCorrection, "delta", "another selector's attention, corrected by every n-th query's dense attention",
               "Delta Attention: Willette et al. 2025, arXiv:2505.11254");

}  // namespace

}  // namespace kvlab
