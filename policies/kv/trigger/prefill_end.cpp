#include "policies/kv/part.h"

namespace kvlab {

namespace {

// Acts once, when the prompt is complete; decoded tokens are all kept (SnapKV, Li et al. 2024, section 4).
class PrefillEnd final : public Trigger {
 public:
  explicit PrefillEnd(Params&) {}
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    const std::int32_t tokens = budget.of(seq.prompt_tokens);
    if (!seq.completes_prompt() || held.tokens() <= tokens) return std::nullopt;
    return tokens;
  }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const override {
    if (seq.end() < seq.prompt_tokens) return std::nullopt;
    return Bound{budget.of(seq.prompt_tokens), seq.prompt_tokens, seq.end() - seq.prompt_tokens};
  }
};

KVLAB_REGISTER(Trigger, PrefillEnd, "prefill_end", "acts once, when the prompt is complete", "SnapKV: Li et al. 2024, arXiv:2404.14469");

}  // namespace

}  // namespace kvlab
