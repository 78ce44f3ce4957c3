#include "policies/kv/trigger/start_phase.h"
#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

// Algorithm 1.
class EveryStep final : public Trigger {
 public:
  explicit EveryStep(Params& p)
      : from_(start_phase(p)),
        of_sequence_(p.choice("share_of", {{"prompt", false}, {"sequence", true}}, false, "what a budget given as a share is taken of")) {}
  [[nodiscard]] bool cuts_few() const override { return true; }
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    const std::int32_t tokens = budget.of(of_sequence_ ? seq.end() : seq.prompt_tokens);
    if (!in_phase(from_, seq) || !held.exceeds(tokens)) return std::nullopt;
    return tokens;
  }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const override {
    if (!in_phase(from_, seq)) return std::nullopt;
    return Bound{budget.of(of_sequence_ ? seq.end() : seq.prompt_tokens), seq.end(), 0};
  }
  [[nodiscard]] std::int64_t lasts(const SeqStep& seq, std::int32_t held, const Budget& budget) const override {
    const std::int32_t tokens = budget.of(seq.prompt_tokens);
    return of_sequence_ ? 1 : held > tokens ? StepKey::kForEver : tokens - held + 1;
  }
  [[nodiscard]] bool inside_prefill() const override { return from_ == StartPhase::kEveryChunk; }
  [[nodiscard]] bool in_decode() const override { return true; }
  [[nodiscard]] bool keeps_counts() const override { return !of_sequence_; }

 private:
  StartPhase from_;
  bool of_sequence_;
};

KVLAB_REGISTER(Trigger, EveryStep, "every_step", "keeps rows at the budget in every decode step",
               "H2O: Zhang et al. 2023, arXiv:2306.14048");

}  // namespace

}  // namespace kvlab
