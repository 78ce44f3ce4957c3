#include <cmath>

#include "policies/kv/allocator/layer_allocator.h"

namespace kvlab {

namespace {

// With w window tokens, C = B - w and n tokens, the last layer has w + C / beta, the first w + 2 C - C / beta, at most n. Layers l and L -
// 1 - l are rounded together, so the mean is B.
class Pyramid final : public LayerAllocator {
 public:
  explicit Pyramid(Params& p)
      : beta_(p.optional<double>("beta", 20, 1, 1e6, "how steep: mean budget beside the window over that of the last layer")),
        window_(p.optional<std::int32_t>("window_tokens", 32, 0, 4096, "tokens that every layer keeps anyway")),
        groups_(
            p.optional<std::int32_t>("layer_groups", 0, 0, 1 << 10,
                                     "groups of neighbouring layers with one budget each, where the model's layers divide into as many; "
                                     "0: each layer its own (WindowKV)")),
        kvpress_(p.choice("rounding", {{"exact_sum", false}, {"kvpress", true}}, false,
                          "exact_sum: layers sum to the budget; kvpress: as kvpress 0.5.5 counts, window inside and unrounded share")) {}

  void set_budget(const Budget& budget) override { frac_ = budget.tokens > 0 ? 0 : budget.frac; }

 private:
  [[nodiscard]] std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t target, std::int32_t n) const override {
    if (kvpress_) return as_kvpress(model.num_layers, layer, target, n);
    if (groups_ == 0 || model.num_layers % groups_ != 0) return exact_sum(model.num_layers, layer, target, n);
    return exact_sum(groups_, layer / (model.num_layers / groups_), target, n);
  }

  [[nodiscard]] std::int32_t exact_sum(std::int32_t num_layers, std::int32_t layer, std::int32_t target, std::int32_t n) const {
    const std::int32_t mean = target - window_, mirrored = num_layers - 1 - layer;
    if (target >= n) return n;
    if (mean <= 0 || n < 2 * mean || layer == mirrored) return target;
    const double most = std::min<double>(2 * mean - mean / beta_, n - window_), least = 2 * mean - most;
    const std::int32_t upper = std::min(layer, mirrored);
    const auto of_upper = static_cast<std::int32_t>(std::lround(most - upper * (most - least) / (num_layers - 1)));
    return window_ + (layer < mirrored ? of_upper : 2 * mean - of_upper);
  }

  // Rounds half to even; slopes the whole budget, window included.
  [[nodiscard]] std::int32_t as_kvpress(std::int32_t num_layers, std::int32_t layer, std::int32_t target, std::int32_t n) const {
    const double plain = frac_ > 0 ? n * frac_ : target, mean = window_ + plain - window_;  // rounded like the peer's sum
    double least = mean / beta_, most = 2 * mean - least;
    if (most >= n - window_) most = n - window_, least = 2 * mean - most;
    const bool sloped = n >= most && most >= least && least >= window_ && num_layers > 1;
    const double tokens = sloped ? most - layer * (most - least) / (num_layers - 1) : plain;
    return std::max(1, static_cast<std::int32_t>(std::nearbyint(tokens)));
  }

  double beta_;
  std::int32_t window_, groups_;
  bool kvpress_;
  double frac_ = 0;  // share of the prompt
};

KVLAB_REGISTER(Allocator, Pyramid, "pyramid", "budgets that fall from the first layer to the last, the same sum",
               "PyramidKV: Cai et al. 2024, arXiv:2406.02069");

}  // namespace

}  // namespace kvlab
