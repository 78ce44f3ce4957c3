#include <algorithm>

#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// The first tokens and a window of the newest; the cache itself stays whole. The pattern of StreamingLLM, Xiao et al. 2023,
// arXiv:2309.17453, section 3.2, as a baseline for selection.
class WindowSinks final : public Selector {
 public:
  explicit WindowSinks(Params& p)
      : sinks_(p.optional<std::int32_t>("sink_tokens", 4, 0, 1 << 20, "first tokens attended to")),
        recent_(p.optional<std::int32_t>("recent_tokens", 1020, 1, 1 << 24, "newest tokens attended to")) {}

  // The sinks stay as they are unless they would fill the budget.
  bool set_budget(std::int32_t tokens) override {
    sinks_ = std::min(sinks_, tokens - 1);
    recent_ = tokens - sinks_;
    return true;
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* len = step.kv.len;
    if (std::all_of(len, len + n, [&](std::int32_t tokens) { return tokens <= sinks_ + recent_; })) return {};
    const std::int32_t* tail = per_row(
        step.ops, n, [&](std::int32_t r) { return len[r] <= sinks_ + recent_ ? 0 : std::min(len[r] - recent_, older_tokens(step, r)); });
    ExpandUnits ends;
    ends.num_rows = n;
    ends.lists.count = per_row(step.ops, n, [](std::int32_t) { return 0; });
    ends.lists.first = prefix_sums(step.ops, n, [](std::int32_t) { return 0; });
    ends.head = per_row(step.ops, n, [&](std::int32_t r) { return std::min(sinks_, tail[r]); });
    ends.tail = tail;
    ends.len = len;
    return expand(step.ops, ends);
  }

 private:
  std::int32_t sinks_, recent_;
};

[[maybe_unused]] const bool registered = SelectorRegistry::add<WindowSinks>(
    {"window_sinks", "the first tokens and a window of the newest ones", "StreamingLLM: Xiao et al. 2023, arXiv:2309.17453, section 3.2"});

}  // namespace

}  // namespace kvlab
