#include <algorithm>
#include <limits>

#include "policies/kv/footprint.h"

namespace kvlab {

namespace {

// Attention sinks plus a recent window, the same in every layer and head (Xiao et al. 2023, arXiv:2309.17453, section 3.2).
// Acts when the prompt is complete and then in every decode step: the token that leaves the window is known before the step,
// so the new one is written in its place and a step needs no room beyond what is kept. Prompt blocks are published uncut;
// the cut sequence gets private pages, copied from them.
class Streaming final : public Footprint {
 public:
  explicit Streaming(Params& p)
      : sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens that are never evicted")),
        recent_(p.optional<std::int32_t>("recent_tokens", 1020, 1, 1 << 26, "latest tokens kept")),
        on_preempt_(p.choice("on_preempt", {"swap", "recompute_chunked"}, 0, "how a cut sequence comes back after preemption") == 0
                        ? OnPreempt::kSwap
                        : OnPreempt::kRecomputeChunked) {}

  FootprintStep step(const SeqState& seq, int new_tokens, bool completes_prompt) const override {
    const std::int32_t budget = sinks_ + recent_;
    if (seq.left_hashed) {
      // One token takes an evicted one's place. A chunk being recomputed goes through in pieces no longer than the budget,
      // each with room of its own, so that coming back never takes more than the first cut did.
      const std::int32_t kept = std::min(budget, seq.kept_tokens + new_tokens);
      return {new_tokens == 1 ? kept : seq.kept_tokens + std::min(new_tokens, budget), kept, false};
    }
    const std::int32_t after = seq.seen_tokens + new_tokens;
    const bool acts = completes_prompt || seq.seen_tokens >= seq.prompt_tokens;
    if (!acts || after <= budget) return {after, after, false};
    return {after, budget, true};
  }

  void ops(const SeqState& seq, int new_tokens, bool completes_prompt, std::vector<PolicyOp>& ops) const override {
    if (step(seq, new_tokens, completes_prompt).leaves_hashed) ops.push_back({PolicyOp::Kind::kCompact, sinks_ + recent_});
  }

  [[nodiscard]] Outlook outlook(const SeqState& seq) const override {
    const std::int32_t budget = sinks_ + recent_;
    if (seq.left_hashed) return {false, seq.kept_tokens == budget ? std::numeric_limits<std::int64_t>::max() : 0};
    return {true, std::max(0, budget - seq.seen_tokens)};
  }

  [[nodiscard]] OnPreempt on_preempt() const override { return on_preempt_; }

 private:
  std::int32_t sinks_, recent_;
  OnPreempt on_preempt_;
};

[[maybe_unused]] const bool registered = FootprintRegistry::add<Streaming>(
    {"streaming", "attention sinks and a recent window", "StreamingLLM: Xiao et al. 2023, arXiv:2309.17453"});

}  // namespace

}  // namespace kvlab
