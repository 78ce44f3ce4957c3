#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// The GPU holds the current and the next layer.
class FetchAll final : public Selector {
 public:
  explicit FetchAll(Params& p)
      : on_disk_(p.choice("from", {{"cpu_memory", false}, {"disk", true}}, false, "the place of K and V between steps")) {}

  Selection select(LayerStep& step) override {
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {
      const std::int32_t older = older_tokens(step, r);
      const std::int64_t bytes = 2LL * older * step.kv.head_dim * step.kv.kv_bytes;
      traffic_.asked_units += older;
      traffic_.fetched_bytes += bytes;
      if (on_disk_) traffic_.disk_bytes += bytes;
    }
    return {};
  }

  [[nodiscard]] FetchBeside fetches_beside() const override { return FetchBeside::kLayerBefore; }
  Traffic take_traffic() override { return std::exchange(traffic_, {}); }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows&, const TierBytes& held) const override {
    const std::int64_t two_layers = std::min(held.gpu, held.gpu * 2 / model.num_layers);
    return {two_layers, held.host + (on_disk_ ? 0 : held.gpu), held.disk + (on_disk_ ? held.gpu : 0)};
  }

 private:
  bool on_disk_;
  Traffic traffic_;
};

KVLAB_REGISTER(Selector, FetchAll, "fetch_all", "every step brings all K and V from CPU memory or disk",
               "FlexGen: Sheng et al. 2023, arXiv:2303.06865, algorithm 1");

}  // namespace

}  // namespace kvlab
