#include "policies/kv/selector/estimate_keys_op.h"
#include "policies/kv/selector/selection.h"
#include "policies/kv/selector/top_mass_op.h"

namespace kvlab {

namespace {

// Estimates attention on a low-bit copy of the keys.
class Twilight final : public QuerySelector<UnitTraffic> {
 public:
  explicit Twilight(Params& p)
      : mass_(p.optional<double>("mass_frac", 0.85, 1e-6, 1, "share of the candidates' estimated attention that each query head keeps")),
        bits_(p.optional<std::int32_t>("bits", 4, 1, 8, "of a channel in the copy of the keys")),
        unpruned_(p.optional<std::int32_t>("unpruned_layers", 2, 0, 1024, "first layers that attend to all candidates")) {
    auto [name, inner] = p.named("of", "all", "the selector whose choice is pruned; `kvlab list selectors`");
    if (!p.is_describing()) inner_ = SelectorRegistry::make(name, inner, "selector");
    name_ = name;
  }

  [[nodiscard]] Needs needs() const override {
    Needs needs = QuerySelector::needs();
    needs.add(inner_->needs());
    return needs;
  }
  [[nodiscard]] std::int32_t num_words() const override { return inner_->num_words(); }
  [[nodiscard]] std::int32_t resident_words() const override { return inner_->resident_words(); }
  void bind(std::int32_t first_word) override {
    Selector::bind(first_word);
    inner_->bind(first_word);
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    bool is_lower = false;
    for (std::int32_t l = 0; l < model.num_layers; ++l) is_lower |= inner_->lower(l) != Lower::kNothing;
    if (is_lower || inner_->adds_segments())
      return "selector 'twilight' prunes tokens of the GPU's cache, and '" + name_ + "' reads others: choose 'quest', 'infllm2' or 'all'";
    return inner_->refuses(model);
  }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override {
    return 2 * inner_->layer_kind(layer) + (layer < unpruned_ ? 0 : 1);
  }
  void step_key(const SeqStep& seq, StepKey& key) const override { inner_->step_key(seq, key); }
  [[nodiscard]] EqualHeads equal_heads() const override { return inner_->equal_heads(); }
  [[nodiscard]] TakesWeights takes_weights() const override { return inner_->takes_weights(); }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override { inner_->set_weights(weights); }
  void forget(std::int32_t index) override {
    QuerySelector::forget(index);
    inner_->forget(index);
  }

  [[nodiscard]] bool takes_budget() const override { return inner_->takes_budget(); }
  void set_budget(const Budget& budget) override { inner_->set_budget(budget); }

  void update(LayerStep& step) override {
    inner_->update(step);
    if (step.layer < unpruned_) return;
    step.ops(EstimateKeys{.kv = step.kv, .bits = bits_, .from = progress_.advance(step), .estimate = estimates(step)});
  }
  Selection exact_tokens(LayerStep& step) override { return inner_->exact_tokens(step); }

  Selection select(LayerStep& step) override {
    const Selection candidates = inner_->select(step);
    inner_->take_traffic();
    if (step.layer < unpruned_) return candidates;
    const std::int32_t n = step.kv.num_rows;
    TopMass top;
    top.num_rows = n;
    top.kv_heads = step.kv.kv_heads, top.group = step.kv.group, top.head_dim = step.kv.head_dim, top.bits = bits_;
    top.queries = step.in.step.data();
    top.estimate = estimates(step);
    top.lists_tokens = candidates.index_first != nullptr;
    top.first = top.lists_tokens ? candidates.index_first : step.kv.first;
    top.candidate = candidates.index;
    top.mass = mass_;
    top.token = step.ops.ints(top.first[n]);
    top.count = per_row(step, [&](std::int32_t r) { return static_cast<std::int32_t>(top.first[r + 1] - top.first[r]); });
    step.ops(top);
    settle_rows(step, "selected_tokens", top.count);
    UnitLists lists{.first = top.first, .unit = top.token, .count = top.count};
    traffic_.track(step, lists);
    return expand(step, {.lists = lists, .tail = step.kv.len});
  }

  [[nodiscard]] TierBytes resident_in_layer(std::int32_t layer, const ModelShape& model, const KvRows& kv,
                                            const TierBytes& held) const override {
    TierBytes bytes = inner_->resident_in_layer(layer, model, kv, held);
    if (layer >= unpruned_) bytes.gpu += kv.total() * estimate_bytes(model.head_dim, bits_);
    return bytes;
  }

 private:
  float* const* estimates(const LayerStep& step) {
    return estimates_.rows(step, [&](std::int32_t r) { return std::int64_t{step.kv.len[r]} * step.kv.head_dim; });
  }

  double mass_;
  std::int32_t bits_, unpruned_;
  std::string name_;
  std::unique_ptr<Selector> inner_;
  RowProgress progress_{*this};
  RowMemory<float> estimates_{*this};
};

KVLAB_REGISTER(Selector, Twilight, "twilight",
               "another selector's choice, pruned to the tokens that hold a share of its estimated attention",
               "Twilight: Lin et al. 2025, arXiv:2502.02770");

}  // namespace

}  // namespace kvlab
