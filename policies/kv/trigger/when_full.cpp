#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

// Algorithm 2.
class WhenFull final : public Trigger {
 public:
  explicit WhenFull(Params& p) : drop_(p.optional<double>("drop_frac", 0.5, 0.0, 1.0, "share of the budget dropped at once")) {}
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    const std::int32_t tokens = budget.of(seq.prompt_tokens);
    if ((!seq.decoding() && !seq.completes_prompt()) || !held.exceeds(tokens)) return std::nullopt;
    return tokens - static_cast<std::int32_t>(drop_ * tokens);
  }
  [[nodiscard]] std::int32_t full(const SeqStep& seq, const Budget& budget) const override { return budget.of(seq.prompt_tokens); }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const override {
    if (seq.end() < seq.prompt_tokens) return std::nullopt;
    return Bound{budget.of(seq.prompt_tokens), seq.end(), 0};
  }
  [[nodiscard]] bool in_decode() const override { return true; }

 private:
  double drop_;
};

KVLAB_REGISTER(Trigger, WhenFull, "when_full", "a row over the budget loses a share of it at once",
               "Scissorhands: Liu et al. 2023, arXiv:2305.17118");

}  // namespace

}  // namespace kvlab
