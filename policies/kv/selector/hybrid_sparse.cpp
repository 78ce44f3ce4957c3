#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "kernels/select/page_bounds/page_bounds.h"
#include "policies/kv/selector/budget_share.h"
#include "policies/kv/selector/signed_pages/signed_pages.h"

namespace kvlab {

namespace {

// Tokens of largest attention, estimated by one value per page and channel in the channels of largest query. The estimate reads half of
// the budget, the tokens are the other half. After an eviction at the prompt's end the budget follows from the number of kept tokens.
// RocketKV's stage 2, Behnam et al. 2025, arXiv:2502.14051.
class HybridSparse final : public QuerySelector<UnitTraffic>, public TakesShare {
 public:
  explicit HybridSparse(Params& p)
      : page_(p.optional<std::int32_t>("page_tokens", 3, 1, 4096, "tokens of a page")),
        own_{p.optional<std::int32_t>("budget_tokens", 0, 0, 1 << 24,
                                      "tokens' worth read per KV head and step; 0: by the share of the prompt that was kept")} {}

  [[nodiscard]] Needs needs() const override {
    Needs needs = QuerySelector::needs();
    needs.cpu_only = true;
    return needs;
  }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver), key.add(seq.end()); }
  bool set_budget(std::int32_t tokens) override {
    own_ = {tokens};
    return true;
  }
  void set_share(const Budget& share) override { own_ = share; }
  void forget(std::int32_t index) override {
    progress_.forget(index);
    bounds_.forget(index);
    QuerySelector::forget(index);
  }

  void update(LayerStep& step) override {
    PageBounds bounds;
    bounds.kv = step.kv;
    bounds.page_tokens = page_;
    bounds.from = progress_.advance(step);
    bounds.bounds = rows(step);
    step.ops(bounds);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step.ops, n, [&](std::int32_t r) {
      const std::int32_t end = older_tokens(step, r) / page_ * page_;
      return chosen_tokens(step, r, end) >= end ? 0 : end;
    });
    if (all_whole(n, tail)) return {};
    const std::int64_t* first = prefix_sums(step.ops, n, [&](std::int32_t r) { return tail[r]; });
    SignedPages pages;
    pages.num_rows = n;
    pages.kv_heads = step.kv.kv_heads, pages.group = step.kv.group;
    pages.head_dim = step.kv.head_dim, pages.kv_bytes = step.kv.kv_bytes, pages.page_tokens = page_;
    pages.queries = step.in.step.data();
    pages.bounds = rows(step);
    pages.channels = per_row(step.ops, n, [&](std::int32_t r) { return channels(step, r); });
    pages.first = first;
    pages.scores = step.ops.floats(first[n]);
    step.ops(pages);
    const std::int32_t* keep = per_row(step.ops, n, [&](std::int32_t r) { return tail[r] == 0 ? 0 : chosen_tokens(step, r, tail[r]); });
    ExpandUnits tokens;
    tokens.num_rows = n;
    tokens.lists = best_units(step.ops, n, 1, first, pages.scores, keep);
    traffic_.track(step, tokens.lists);
    tokens.tail = tail;
    tokens.len = step.kv.len;
    return expand(step.ops, tokens);
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    TierBytes bytes = held;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) bytes.gpu += ceil_div(kv.len[r], page_) * 2LL * model.head_dim * model.kv_bytes;
    return bytes;
  }

 private:
  // Tokens of the prompt that the row still holds.
  [[nodiscard]] static std::int32_t kept_tokens(const LayerStep& step, std::int32_t r) {
    const SeqStep& seq = seq_of(step, r);
    return std::clamp(step.kv.len[r] - (seq.end() - seq.prompt_tokens), 1, std::max(1, seq.prompt_tokens));
  }
  // The paper splits the compression c of a prompt of n tokens into c^r by eviction and the rest by selection, with
  // r = min(0.2 + 0.06 log2 c, 0.8). Here c follows from the C = n / c^r tokens that were kept, and the budget is n / c.
  [[nodiscard]] std::int32_t budget(const LayerStep& step, std::int32_t r) const {
    if (is_given(own_)) return tokens_of(own_, step, r);
    const double n = std::max(1, seq_of(step, r).prompt_tokens), evicted = std::log2(n / kept_tokens(step, r));
    const double bits = (std::sqrt(0.04 + 0.24 * evicted) - 0.2) / 0.12;  // log2 c: r log2 c = evicted
    return std::max(2, static_cast<std::int32_t>(std::lround(n / std::exp2(bits <= 10 ? bits : evicted / 0.8))));
  }
  // The number of tokens before `end`; those from there on are always read and count.
  [[nodiscard]] std::int32_t chosen_tokens(const LayerStep& step, std::int32_t r, std::int32_t end) const {
    const std::int32_t all = budget(step, r);
    if (all >= (is_given(own_) ? step.kv.len[r] : kept_tokens(step, r))) return end;
    return std::min(end, std::max(1, all / 2 - (step.kv.len[r] - end)));
  }
  // The number of channels for which the estimate reads half of the bytes of the budget's tokens, keys and values.
  [[nodiscard]] std::int32_t channels(const LayerStep& step, std::int32_t r) const {
    const double ratio = static_cast<double>(kept_tokens(step, r)) / budget(step, r);
    return std::clamp(static_cast<std::int32_t>(step.kv.head_dim * page_ / ratio), 1, step.kv.head_dim);
  }
  float* const* rows(const LayerStep& step) {
    return bounds_.rows(step, [&](std::int32_t r) { return (step.kv.len[r] + page_ - 1LL) / page_ * 2 * step.kv.head_dim; });
  }

  std::int32_t page_;
  Budget own_;
  RowProgress progress_;
  RowMemory<float> bounds_;
};

KVLAB_REGISTER(Selector, HybridSparse, "hybrid_sparse", "tokens by one value per page and channel, in the channels of largest query",
               "RocketKV: Behnam et al. 2025, arXiv:2502.14051");

}  // namespace

}  // namespace kvlab
