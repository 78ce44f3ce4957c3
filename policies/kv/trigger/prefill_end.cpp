#include <algorithm>

#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

class Never final : public Trigger {
 public:
  explicit Never(Params&) {}
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep&, const Held&, const Budget&) const override { return std::nullopt; }
  [[nodiscard]] bool acts() const override { return false; }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep&, const Budget&) const override { return std::nullopt; }
};

KVLAB_REGISTER(Trigger, Never, "never", "every token is kept", "Vaswani et al. 2017, arXiv:1706.03762");

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

// Decoded tokens stay.
class PerChunk final : public Trigger {
 public:
  explicit PerChunk(Params& p)
      : block_(p.optional<std::int32_t>("block_tokens", 128, 1, 1 << 20,
                                        "chunk size the method is meant for; cuts come after the host's chunks")),
        keeps_chunk_(p.flag("keep_chunk", false, "tokens of the newest chunk stay, of a longer one the last block_tokens")) {}
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    const std::int32_t tokens = budget.of(seq.prompt_tokens);
    if (seq.decoding() || !held.exceeds(tokens)) return std::nullopt;
    return tokens;
  }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const override {
    const std::int32_t of_prompt = std::min(seq.end(), seq.prompt_tokens);
    return Bound{budget.of(seq.prompt_tokens), of_prompt, seq.end() - of_prompt};
  }
  [[nodiscard]] bool inside_prefill() const override { return true; }
  [[nodiscard]] Protected protects(const SeqStep& seq) const override { return {0, keeps_chunk_ ? std::min(seq.new_tokens, block_) : 0}; }

 private:
  std::int32_t block_;
  bool keeps_chunk_;
};

KVLAB_REGISTER(Trigger, PerChunk, "per_chunk", "cuts after each prefill chunk", "KeyDiff: Park et al. 2025, arXiv:2504.15364");

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
