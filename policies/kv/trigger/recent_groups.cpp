#include "policies/kv/recent_groups.h"

#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

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

}  // namespace

}  // namespace kvlab
