#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

// Section 4. Decoded tokens stay.
class PrefillEnd final : public Trigger {
 public:
  explicit PrefillEnd(Params& p)
      : has_budget_(p.flag("budgeted", true, "cut to the budget; false: all tokens may stay, the allocator decides")) {}
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    if (!has_budget_) return seq.completes_prompt() ? std::optional(held.tokens()) : std::nullopt;
    const std::int32_t tokens = budget.of(seq.prompt_tokens);
    if (!seq.completes_prompt() || held.tokens() <= tokens) return std::nullopt;
    return tokens;
  }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const override {
    if (!has_budget_ || seq.end() < seq.prompt_tokens) return std::nullopt;
    return Bound{budget.of(seq.prompt_tokens), seq.prompt_tokens, seq.end() - seq.prompt_tokens};
  }
  [[nodiscard]] bool needs_budget() const override { return has_budget_; }

 private:
  bool has_budget_;
};

KVLAB_REGISTER(Trigger, PrefillEnd, "prefill_end", "acts once, when the prompt is complete", "SnapKV: Li et al. 2024, arXiv:2404.14469");

}  // namespace

}  // namespace kvlab
