#include "policies/kv/selector/budget_share.h"

namespace kvlab {

namespace {

class WindowSinks final : public Budgeted<Selector> {
 public:
  explicit WindowSinks(Params& p)
      : sinks_(p.optional<std::int32_t>("sink_tokens", 4, 0, 1 << 20, "first tokens attended to")),
        recent_(p.optional<std::int32_t>("recent_tokens", 1020, 1, 1 << 24, "newest tokens attended to")) {}

  Selection select(LayerStep& step) override {
    const std::int32_t* len = step.kv.len;
    const std::int32_t* sinks =
        per_row(step, [&](std::int32_t r) { return is_given(budget_) ? std::min(sinks_, tokens_of(budget_, step, r) - 1) : sinks_; });
    const std::int32_t* recent =
        per_row(step, [&](std::int32_t r) { return is_given(budget_) ? tokens_of(budget_, step, r) - sinks[r] : recent_; });
    const std::int32_t* tail = per_row(
        step, [&](std::int32_t r) { return len[r] <= sinks[r] + recent[r] ? 0 : std::min(len[r] - recent[r], older_tokens(step, r)); });
    if (all_whole(step, tail)) return {};
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return std::min(sinks[r], tail[r]); });
    return expand(step, {.lists = no_units(step), .head = head, .tail = tail});
  }

 private:
  std::int32_t sinks_, recent_;
};

KVLAB_REGISTER(Selector, WindowSinks, "window_sinks", "the first tokens and a window of the newest ones",
               "StreamingLLM: Xiao et al. 2023, arXiv:2309.17453, section 3.2");

}  // namespace

}  // namespace kvlab
