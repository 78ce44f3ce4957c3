#include <algorithm>

#include "base/config/param_reader.h"
#include "kernels/storage/evict_rows_op.h"
#include "policies/kv/step.h"
#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

enum class StartPhase : std::uint8_t { kPromptEnd, kDecodeOnly, kEveryChunk };

inline StartPhase start_phase(Params& p) {
  return p.choice(
      "from", {{"prompt_end", StartPhase::kPromptEnd}, {"decode_only", StartPhase::kDecodeOnly}, {"every_chunk", StartPhase::kEveryChunk}},
      StartPhase::kPromptEnd, "first cut: when the prompt is complete, in decode, or after each prefill chunk");
}

inline bool in_phase(StartPhase phase, const SeqStep& seq) {
  return seq.decoding() || phase == StartPhase::kEveryChunk || (phase == StartPhase::kPromptEnd && seq.completes_prompt());
}

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

// Counts from the prompt's end. Without a budget the allocator decides at every cut (CORM) or once per token, when it leaves the recent
// window (DMS).
class EveryN final : public Trigger {
 public:
  explicit EveryN(Params& p)
      : from_(start_phase(p)),
        steps_(p.optional<std::int32_t>("steps", 128, 1, 1 << 20, "decode steps between cuts")),
        has_budget_(p.flag("budgeted", true, "cut to the budget; false: all tokens may stay, the allocator decides")),
        window_(p.optional<std::int32_t>("window_tokens", 0, 0, 1 << 20,
                                         "latest tokens that stay; of the others each is looked at in one cut alone and then stays. 0: all "
                                         "tokens are looked at in every cut")) {
    if (window_ > 0 && has_budget_) p.fail_at("window_tokens", "'window_tokens' lets tokens stay forever: 'budgeted' must be false");
  }
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    if (!in_phase(from_, seq) || (seq.decoding() && (seq.end() - seq.prompt_tokens) % steps_ != 0)) return std::nullopt;
    if (!has_budget_) return held.tokens();
    const std::int32_t tokens = budget.of(seq.prompt_tokens);
    if (!held.exceeds(tokens)) return std::nullopt;
    return tokens;
  }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const override {
    const bool cuts_prompt = from_ != StartPhase::kDecodeOnly;
    const std::int32_t decoded = seq.end() - seq.prompt_tokens;
    if (!has_budget_ || (seq.decoding() ? !cuts_prompt && decoded < steps_ : !in_phase(from_, seq))) return std::nullopt;
    return Bound{budget.of(seq.prompt_tokens), seq.end(), seq.decoding() ? slack_tokens() : 0};
  }
  [[nodiscard]] std::int64_t lasts(const SeqStep& seq, std::int32_t, const Budget&) const override {
    const std::int32_t since = (seq.end() - seq.prompt_tokens) % steps_;
    return since == 0 ? 1 : steps_ - since;
  }
  [[nodiscard]] bool inside_prefill() const override { return from_ == StartPhase::kEveryChunk; }
  [[nodiscard]] bool in_decode() const override { return true; }
  [[nodiscard]] bool cuts_few() const override { return steps_ <= EvictRows::kMost; }
  [[nodiscard]] std::int32_t slack_tokens() const override { return steps_ - 1; }
  [[nodiscard]] bool needs_budget() const override { return has_budget_; }
  [[nodiscard]] Protected protects(const SeqStep& seq) const override {
    return {0, window_, false, 0, window_ > 0 ? std::max(0, last_cut(seq) - window_) : 0};
  }

 private:
  // Tokens at the previous cut; 0: none.
  [[nodiscard]] std::int32_t last_cut(const SeqStep& seq) const {
    if (!seq.decoding()) return from_ == StartPhase::kEveryChunk ? seq.seen_tokens : 0;
    const std::int32_t end = seq.end() - steps_;
    return end > seq.prompt_tokens || (end == seq.prompt_tokens && from_ != StartPhase::kDecodeOnly) ? end : 0;
  }

  StartPhase from_;
  std::int32_t steps_;
  bool has_budget_;
  std::int32_t window_;
};

KVLAB_REGISTER(Trigger, EveryN, "every_n", "cuts rows every n decode steps", "LazyEviction: Zhang et al. 2025, arXiv:2506.15969");

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
