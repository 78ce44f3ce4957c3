#include "kernels/nearest_keys/nearest_keys.h"
#include "policies/kv/selector/tiers.h"

namespace kvlab {

namespace {

// First and newest tokens on the GPU; the others on the host behind a search structure that finds the keys nearest to each query
// head's query. RetrievalAttention, Liu et al. 2024, arXiv:2409.10516, section 4. The search here is exact and priced as one that
// looks at a share of the keys.
class RetrievalAttention final : public Selector {
 public:
  explicit RetrievalAttention(Params& p)
      : sinks_(p.optional<std::int32_t>("sink_tokens", 128, 0, 1 << 20, "first tokens, on the GPU")),
        recent_(p.optional<std::int32_t>("recent_tokens", 512, 1, 1 << 24, "newest tokens, on the GPU")),
        top_(p.optional<std::int32_t>("top_tokens", 100, 1, 1 << 24, "keys found per query head; what a KV head reads is their union")),
        visit_frac_(p.optional<double>("visit_frac", 0.02, 1e-6, 1, "share of the keys that a search looks at")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.step_queries = true;
    return needs;
  }
  // First and newest tokens give way where they would fill more than three quarters of it.
  bool set_budget(std::int32_t tokens) override {
    sinks_ = std::min(sinks_, tokens / 4);
    recent_ = std::clamp(tokens / 2, 1, recent_);
    top_ = std::max(1, tokens - sinks_ - recent_);
    return true;
  }
  void forget(std::int32_t index) override { traffic_.forget(index); }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows, group = step.kv.group;
    const std::int32_t* tail =
        per_row(step.ops, n, [&](std::int32_t r) { return std::min(older_tokens(step, r), std::max(0, step.kv.len[r] - recent_)); });
    const std::int32_t* head = per_row(step.ops, n, [&](std::int32_t r) { return std::min(sinks_, tail[r]); });
    const std::int64_t* first = prefix_sums(step.ops, n, [&](std::int32_t r) { return tail[r] - head[r]; });
    const std::int32_t* keep = per_row(step.ops, n, [&](std::int32_t r) { return std::min(top_, tail[r] - head[r]); });
    if (keeps_all(n, first, keep)) return {};
    NearestKeys nearest;
    nearest.kv = step.kv;
    nearest.queries = step.in.step.data();
    nearest.begin = head, nearest.end = tail, nearest.keep = keep;
    nearest.visit_frac = visit_frac_;
    UnitLists lists;
    lists.first = nearest.index_first = prefix_sums(step.ops, n * group, [&](std::int32_t i) { return keep[i / group]; });
    lists.unit = nearest.index = step.ops.ints(nearest.index_first[n * group]);
    step.ops(nearest);
    const UnitLists chosen = united(step, lists, first, keep);
    const Selection selection = tokens_and_tail(step, chosen, head, tail);
    traffic_.track(step, chosen, lists_of(selection), 2LL * step.kv.head_dim * step.kv.kv_bytes);
    return selection;
  }

  Traffic take_traffic() override { return traffic_.take(); }
  [[nodiscard]] TierBytes resident(const ModelShape&, const KvRows& kv, const TierBytes& held) const override {
    std::int64_t on_gpu = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) on_gpu += std::min(kv.len[r], sinks_ + recent_);
    return keep_on_gpu(held, on_gpu, kv.total());
  }

 private:
  std::int32_t sinks_, recent_, top_;
  double visit_frac_;
  TierTraffic traffic_;
};

[[maybe_unused]] const bool registered = SelectorRegistry::add<RetrievalAttention>(
    {"retrieval_attention", "first and newest tokens, and the keys nearest to each query head's query among those on the host",
     "RetrievalAttention: Liu et al. 2024, arXiv:2409.10516, section 4"});

}  // namespace

}  // namespace kvlab
