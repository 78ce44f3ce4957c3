#include "kernels/select/nearest_keys_op.h"
#include "policies/kv/selector/budget_share.h"
#include "policies/kv/selector/tiers.h"

namespace kvlab {

namespace {

// Attention is renormalized over fetched values.
class KCache final : public Budgeted<TierSelector> {
 public:
  explicit KCache(Params& p)
      : Budgeted({p.optional<std::int32_t>("top_tokens", 128, 1, 1 << 24,
                                           "values brought per query head; what a KV head loads is their union")}),
        dense_layers_(p.optional<std::int32_t>("dense_layers", 2, 0, 1024, "first layers whose values stay on the GPU")) {}

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_layers_ ? 0 : 1; }

  [[nodiscard]] Lower lower(std::int32_t layer) const override { return layer < dense_layers_ ? Lower::kNothing : Lower::kValues; }

  void update(LayerStep& step) override {
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return older_tokens(step, r); });
    const std::int32_t* keep = per_row(step, [&](std::int32_t r) { return std::min(tokens_of(budget_, step, r), tail[r]); });
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return tail[r]; });
    if (traffic_.reads_all(step, step.layer < dense_layers_ || keeps_all(step, first, keep))) return {};
    NearestKeys nearest{
        .kv = step.kv, .queries = step.in.step.data(), .begin = per_row(step, [](std::int32_t) { return 0; }), .end = tail, .keep = keep};
    UnitLists lists;
    lists.first = nearest.index_first = prefix_sums(step.ops, n * step.kv.group, [&](std::int32_t i) { return keep[i / step.kv.group]; });
    lists.unit = nearest.index = step.ops.ints(nearest.index_first[n * step.kv.group]);
    step.ops(nearest);
    const UnitLists chosen = united(step, lists, first, keep);
    const Selection selection = expand(step, {.lists = chosen, .tail = tail});
    traffic_.track(step, chosen, lists_of(selection), static_cast<std::int64_t>(step.kv.head_dim) * step.kv.kv_bytes);
    return selection;
  }

  [[nodiscard]] TierBytes resident_in_layer(std::int32_t layer, const ModelShape& model, const KvRows& kv,
                                            const TierBytes& held) const override {
    if (layer < dense_layers_) return held;
    const auto values = sum_rows(
        kv, [&](std::int32_t r) { return std::min<std::int64_t>(kv.len[r], 1LL + std::int64_t{budget_.of(kv.len[r])} * model.group()); });
    return keep_on_gpu(held, kv.total() + values, 2 * kv.total());
  }

 private:
  std::int32_t held_from(const LayerStep& step, std::int32_t r) override {
    return tokens_of(budget_, step, r) >= step.kv.len[r] ? 0 : step.kv.len[r];
  }

  std::int32_t dense_layers_;
};

KVLAB_REGISTER(Selector, KCache, "k_cache", "exact logits from keys on the GPU; only the values of the largest are brought from the host",
               "KCache: He and Wu 2024, arXiv:2404.18057, section 3");

}  // namespace

}  // namespace kvlab
