#include <algorithm>

#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

// Partitions of `lag` follow the sinks and are cut once; the last full one and later tokens stay. A budget share applies per partition; a
// token budget (ours) to the row at the prompt's end; partitions keep 0 if sinks and tail exceed it.
class Lagged final : public Trigger {
 public:
  explicit Lagged(Params& p)
      : sinks_(p.optional<std::int32_t>("sinks_tokens", 16, 0, 1 << 20, "first tokens, outside the partitions")),
        lag_(p.optional<std::int32_t>("lag_tokens", 128, 1, 1 << 20, "tokens of a partition")) {}

  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    if (!seq.decoding() && !seq.completes_prompt()) return std::nullopt;
    const std::int32_t tokens = left(seq, budget);
    if (cut_partitions(seq.end()) == 0 || !held.exceeds(tokens)) return std::nullopt;
    return tokens;
  }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const override {
    if (seq.end() < seq.prompt_tokens) return std::nullopt;
    return Bound{left(seq, budget), seq.end(), 0};
  }
  [[nodiscard]] bool in_decode() const override { return true; }
  [[nodiscard]] std::int32_t slack_tokens() const override { return 2 * lag_; }
  [[nodiscard]] Protected protects(const SeqStep& seq) const override {
    return {sinks_, std::max(0, seq.end() - sinks_ - cut_partitions(seq.end()) * lag_)};
  }

 private:
  [[nodiscard]] std::int32_t left(const SeqStep& seq, const Budget& budget) const {
    return seq.end() - cut_partitions(seq.end()) * (lag_ - kept_of_partition(seq, budget));
  }
  [[nodiscard]] std::int32_t cut_partitions(std::int32_t end) const { return std::max(0, (end - sinks_) / lag_ - 1); }
  [[nodiscard]] std::int32_t kept_of_partition(const SeqStep& seq, const Budget& budget) const {
    if (budget.tokens == 0) return static_cast<std::int32_t>(std::min(1.0, budget.frac) * lag_);
    const std::int32_t cut = cut_partitions(seq.prompt_tokens), whole = seq.prompt_tokens - cut * lag_;
    if (budget.tokens >= seq.prompt_tokens) return lag_;
    return cut == 0 ? 0 : std::max(0, budget.tokens - whole) / cut;
  }

  std::int32_t sinks_, lag_;
};

KVLAB_REGISTER(Trigger, Lagged, "lagged", "cuts a partition once the next one is full", "LagKV: Liang et al. 2025, arXiv:2504.04704");

}  // namespace

}  // namespace kvlab
