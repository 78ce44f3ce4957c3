#include <algorithm>
#include <cmath>

#include "policies/kv/selector/channel_scores_op.h"
#include "policies/kv/selector/paged_selector.h"

namespace kvlab {

namespace {

// RocketKV's stage 2. Half of the budget pays for the estimate. After an eviction at the prompt's end, kept tokens set the budget.
class HybridSparse final : public PagedSelector {
 public:
  explicit HybridSparse(Params& p) : page_(p.optional<std::int32_t>("page_tokens", 3, 1, 4096, "tokens of a page")) {
    const auto budget = p.optional<std::int32_t>("budget_tokens", 0, 0, 1 << 24,
                                                 "tokens' worth read per KV head and step; 0: by the share of the prompt that was kept");
    set_sizes({.budget = {budget}, .stride_tokens = page_});
  }

  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver), key.add(seq.end()); }

 protected:
  [[nodiscard]] Plan plan(const LayerStep& step, std::int32_t r) const override {
    const std::int32_t end = older_tokens(step, r) / page_ * page_, chosen = chosen_tokens(step, r, end);
    return chosen >= end ? Plan{} : Plan{end, chosen};
  }
  UnitLists choose(LayerStep& step, const RowPlans& rows) override {
    const ChannelScores pages{.kv = step.kv,
                              .kind = ChannelScores::Kind::kBounds,
                              .queries = step.in.step.data(),
                              .channels = per_row(step, [&](std::int32_t r) { return channels(step, r); }),
                              .bounds = summaries_.rows(step),
                              .unit_tokens = page_,
                              .first = rows.first,
                              .scores = step.ops.floats(rows.first[step.kv.num_rows])};
    step.ops(pages);
    return best_units(step, rows.first, pages.scores, rows.keep);
  }

 private:
  [[nodiscard]] static std::int32_t kept_tokens(const LayerStep& step, std::int32_t r) {
    const SeqStep& seq = seq_of(step, r);
    return std::clamp(step.kv.len[r] - (seq.end() - seq.prompt_tokens), 1, std::max(1, seq.prompt_tokens));
  }
  // The paper splits compression c into c^r by eviction and the rest by selection, r = min(0.2 + 0.06 log2 c, 0.8). Solves for c given n /
  // c^r kept tokens; the budget is n / c.
  [[nodiscard]] std::int32_t budget(const LayerStep& step, std::int32_t r) const {
    if (is_given(budget_)) return tokens(step, r);
    const double n = std::max(1, seq_of(step, r).prompt_tokens), evicted = std::log2(n / kept_tokens(step, r));
    const double bits = (std::sqrt(0.04 + 0.24 * evicted) - 0.2) / 0.12;  // log2 c: r log2 c = evicted
    return std::max(2, static_cast<std::int32_t>(std::lround(n / std::exp2(bits <= 10 ? bits : evicted / 0.8))));
  }
  // Before `end`; later ones are always read and count.
  [[nodiscard]] std::int32_t chosen_tokens(const LayerStep& step, std::int32_t r, std::int32_t end) const {
    const std::int32_t all = budget(step, r);
    if (all >= (is_given(budget_) ? step.kv.len[r] : kept_tokens(step, r))) return end;
    return std::min(end, std::max(1, all / 2 - (step.kv.len[r] - end)));
  }
  // The estimate reads half as many bytes as the budget's K and V.
  [[nodiscard]] std::int32_t channels(const LayerStep& step, std::int32_t r) const {
    const double ratio = static_cast<double>(kept_tokens(step, r)) / budget(step, r);
    return std::clamp(static_cast<std::int32_t>(step.kv.head_dim * page_ / ratio), 1, step.kv.head_dim);
  }

  std::int32_t page_;
};

KVLAB_REGISTER(Selector, HybridSparse, "hybrid_sparse", "tokens by one value per page and channel, in the channels of largest query",
               "RocketKV: Behnam et al. 2025, arXiv:2502.14051");

}  // namespace

}  // namespace kvlab
