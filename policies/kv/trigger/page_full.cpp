#include <fmt/format.h>

#include <algorithm>

#include "kernels/storage/evict_rows_op.h"
#include "policies/kv/recent_groups.h"
#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

// Prompts are cut to whole pages; decoding rows over budget lose one page, not the newest.
class PageFull final : public Trigger {
 public:
  explicit PageFull(Params& p) : page_(p.optional<std::int32_t>("page_tokens", 16, 1, 1 << 16, "tokens of a page")) {}

  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    const std::int32_t tokens = std::max(page_, budget.of(seq.prompt_tokens)), whole = tokens / page_ * page_;
    const bool acts = seq.decoding() ? held.tokens() % page_ == 0 && held.exceeds(whole) : seq.completes_prompt() && held.exceeds(tokens);
    return acts ? std::optional(whole) : std::nullopt;
  }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const override {
    if (seq.end() < seq.prompt_tokens) return std::nullopt;
    return Bound{std::max(page_, budget.of(seq.prompt_tokens)), seq.end(), seq.decoding() ? slack_tokens() : 0};
  }
  [[nodiscard]] std::int64_t lasts(const SeqStep&, std::int32_t held, const Budget&) const override {
    return held % page_ == 0 ? 1 : page_ - held % page_;
  }
  [[nodiscard]] std::string refuses_budget(std::int32_t tokens) const override {
    return tokens < page_ ? fmt::format("is below a page of {} tokens", page_) : "";
  }
  [[nodiscard]] bool in_decode() const override { return true; }
  [[nodiscard]] bool cuts_few() const override { return page_ <= EvictRows::kMost; }
  [[nodiscard]] std::int32_t unit() const override { return page_; }
  [[nodiscard]] std::int32_t slack_tokens() const override { return page_ - 1; }
  [[nodiscard]] Protected protects(const SeqStep& seq) const override { return {0, seq.decoding() ? page_ : 0}; }

 private:
  std::int32_t page_;
};

KVLAB_REGISTER(Trigger, PageFull, "page_full", "frees one page when the newest is full",
               "PagedEviction: Chitty-Venkata et al. 2025, arXiv:2509.04377");

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

// The allocator decides how many of the group stay.
class RecentGroupsTrigger final : public Trigger {
 public:
  explicit RecentGroupsTrigger(Params& p)
      : groups_(p), sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, of which no group is cut")) {}

  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget&) const override {
    const std::int32_t decoded = seq.end() - seq.prompt_tokens;
    if (!seq.decoding() || decoded % groups_.group_tokens != 0 || before(seq) < sinks_) return std::nullopt;
    return held.tokens();
  }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep&, const Budget&) const override { return std::nullopt; }
  [[nodiscard]] std::int64_t lasts(const SeqStep& seq, std::int32_t, const Budget&) const override {
    const std::int32_t since = (seq.end() - seq.prompt_tokens) % groups_.group_tokens;
    return since == 0 ? 1 : groups_.group_tokens - since;
  }
  [[nodiscard]] bool in_decode() const override { return true; }
  [[nodiscard]] std::int32_t slack_tokens() const override { return groups_.group_tokens - 1; }
  [[nodiscard]] bool needs_budget() const override { return false; }
  [[nodiscard]] Protected protects(const SeqStep& seq) const override {
    return {0, groups_.recent(seq.prompt_tokens), false, 0, std::max(0, before(seq))};
  }

 private:
  [[nodiscard]] std::int32_t before(const SeqStep& seq) const {
    return seq.end() - groups_.recent(seq.prompt_tokens) - groups_.group_tokens;
  }

  RecentGroups groups_;
  std::int32_t sinks_;
};

KVLAB_REGISTER(Trigger, RecentGroupsTrigger, "recent_groups", "cuts the latest group of tokens that is no longer recent, once",
               "PyramidInfer: Yang et al. 2024, arXiv:2405.12532");

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
