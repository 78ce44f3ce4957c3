#include "policies/kv/trigger/start_phase.h"

namespace kvlab {

namespace {

// Down to the budget every n decode steps, counted from the prompt's end. Without a budget of its own the allocator says how many
// tokens stay (CORM: those some recent query found important).
class EveryN final : public Trigger {
 public:
  explicit EveryN(Params& p)
      : from_(start_phase(p)),
        steps_(p.optional<std::int32_t>("steps", 128, 1, 1 << 20, "decode steps between cuts")),
        has_budget_(p.flag("budgeted", true, "cut to the budget; false: all tokens may stay, the allocator decides")) {}
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    if (!in_phase(from_, seq) || (seq.decoding() && (seq.end() - seq.prompt_tokens) % steps_ != 0)) return std::nullopt;
    if (!has_budget_) return held.tokens();
    const std::int32_t tokens = budget.of(seq.prompt_tokens);
    if (!held.exceeds(tokens)) return std::nullopt;
    return tokens;
  }
  [[nodiscard]] bool inside_prefill() const override { return from_ == StartPhase::kEveryChunk; }
  [[nodiscard]] bool in_decode() const override { return true; }
  [[nodiscard]] std::int32_t slack_tokens() const override { return steps_ - 1; }
  [[nodiscard]] bool needs_budget() const override { return has_budget_; }

 private:
  StartPhase from_;
  std::int32_t steps_;
  bool has_budget_;
};

[[maybe_unused]] const bool registered =
    TriggerRegistry::add<EveryN>({"every_n", "cuts rows every n decode steps", "LazyEviction: Zhang et al. 2025, arXiv:2506.15969"});

}  // namespace

}  // namespace kvlab
