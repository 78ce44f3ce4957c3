#include <algorithm>

#include "kernels/storage/evict_rows_op.h"
#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

// The prompt is cut once; the latest tokens stay. The decoded tokens' budget is fixed, grows by one every few steps, or is also enforced
// only then (slide, adaptive, discontinuous).
class Scope final : public Trigger {
  enum class Mode : std::uint8_t { kSlide, kAdaptive, kDiscontinuous };

 public:
  explicit Scope(Params& p)
      : mode_(p.choice("mode", {{"slide", Mode::kSlide}, {"adaptive", Mode::kAdaptive}, {"discontinuous", Mode::kDiscontinuous}},
                       Mode::kSlide, "how the decode budget develops")),
        recent_(p.optional<std::int32_t>("recent_tokens", 256, 0, 1 << 20, "latest decoded tokens that stay")),
        decode_(p.optional<std::int32_t>("decode_tokens", 512, 1, 1 << 20, "budget of decoded tokens in mode slide, the latest included")),
        growth_steps_(p.optional<std::int32_t>("growth_steps", 15, 1, 1 << 20, "steps until the budget of the other modes grows by one")) {
    if (decode_ < recent_) p.fail_at("decode_tokens", "'decode_tokens' must be at least 'recent_tokens'");
  }

  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    const std::int32_t prompt = std::min(budget.of(seq.prompt_tokens), seq.prompt_tokens);
    if (!seq.decoding()) return seq.completes_prompt() && held.tokens() > prompt ? std::optional(prompt) : std::nullopt;
    const std::int32_t steps = seq.end() - seq.prompt_tokens;
    if (mode_ == Mode::kDiscontinuous && steps % growth_steps_ != 0) return std::nullopt;
    const std::int32_t tokens = prompt + decode_budget(steps);
    return held.exceeds(tokens) ? std::optional(tokens) : std::nullopt;
  }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const override {
    if (seq.end() < seq.prompt_tokens) return std::nullopt;
    const std::int32_t steps = seq.end() - seq.prompt_tokens, waits = mode_ == Mode::kDiscontinuous ? growth_steps_ - 1 : 0;
    return Bound{std::min(budget.of(seq.prompt_tokens), seq.prompt_tokens), seq.prompt_tokens,
                 std::min(steps, decode_budget(steps) + waits)};
  }
  [[nodiscard]] bool in_decode() const override { return true; }
  [[nodiscard]] bool cuts_few() const override { return mode_ != Mode::kDiscontinuous || growth_steps_ <= EvictRows::kMost; }
  [[nodiscard]] std::int32_t slack_tokens() const override { return mode_ == Mode::kSlide ? decode_ : recent_ + growth_steps_; }
  [[nodiscard]] Protected protects(const SeqStep& seq) const override { return seq.decoding() ? Protected{0, recent_, true} : Protected{}; }

 private:
  [[nodiscard]] std::int32_t decode_budget(std::int32_t steps) const {
    return mode_ == Mode::kSlide ? decode_ : recent_ + steps / growth_steps_;
  }

  Mode mode_;
  std::int32_t recent_, decode_, growth_steps_;
};

KVLAB_REGISTER(Trigger, Scope, "scope", "separate budgets for prompt and decoded tokens", "SCOPE: Wu et al. 2024, arXiv:2412.13649");

}  // namespace

}  // namespace kvlab
