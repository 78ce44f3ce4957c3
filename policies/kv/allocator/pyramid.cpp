#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policies/kv/allocator/counts.h"
#include "policies/kv/recent_groups.h"

namespace kvlab {

namespace {

// Equal counts in a layer, from lengths only.
class LayerAllocator : public Allocator {
 public:
  [[nodiscard]] bool keeps_no_state() const override { return true; }
  void allocate(Ops&, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) final {
    for (ScoredLayer& l : layers)
      for (std::size_t s = 0; s < seqs.size(); ++s)
        keep_alike(l, static_cast<std::int32_t>(s), tokens(model, l.layer, l.target[s], seqs[s].end()));
  }
  [[nodiscard]] std::int32_t expected(const ModelShape& model, std::int32_t layer, std::int32_t /*kv_head*/, std::int32_t target,
                                      std::int32_t n) const final {
    return std::min(n, tokens(model, layer, target, n));
  }

 private:
  // Tokens per KV head of n, `target` on average. May exceed n.
  [[nodiscard]] virtual std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t target, std::int32_t n) const = 0;
};

// A value per layer ("0=0.5 1=0.2"), or empty.
class LayerValues {
 public:
  // word: in messages. Throws InputError at `key` for values outside [min, max] or of a KV head.
  LayerValues(Params& p, std::string key, double min, double max, const std::string& word)
      : key_(std::move(key)), entries_(read_table(p, key_, true, min, max, "LAYER=" + word + " for every layer; empty: all alike")) {
    for (const TableEntry& e : entries_)
      if (e.head >= 0) p.fail_at(key_, fmt::format("'{}' is a layer's: LAYER={}", key_, word));
  }

  // "" or why the values do not fit.
  [[nodiscard]] std::string refuses(const ModelShape& model) const {
    for (std::int32_t l = 0; l < model.num_layers && !is_empty(); ++l)
      if (find_entry(entries_, l, -1) == nullptr) return fmt::format("'{}' has no value for layer {}", key_, l);
    return refuses_table(entries_, key_, model);
  }
  [[nodiscard]] bool is_empty() const { return entries_.empty(); }
  [[nodiscard]] double of(std::int32_t layer) const { return find_entry(entries_, layer, -1)->value; }
  // Not for an empty table.
  [[nodiscard]] std::pair<double, double> range() const {
    const auto below = [](const TableEntry& a, const TableEntry& b) { return a.value < b.value; };
    const auto [low, high] = std::minmax_element(entries_.begin(), entries_.end(), below);
    return {low->value, high->value};
  }

 private:
  std::string key_;
  std::vector<TableEntry> entries_;
};

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

// A cut keeps the share ratio (decay + (1 - decay) (cos(pi l / L) + 1) / 2) of a group.
class GroupShare final : public LayerAllocator {
 public:
  explicit GroupShare(Params& p)
      : group_(RecentGroups::group_of(p)),
        ratio_(p.optional<double>("ratio", 0.9, 0, 1, "share of a group that stays in layer 0")),
        decay_(p.optional<double>("decay", 0.1, 0, 1, "part of it that the deepest layers would keep")) {}

 private:
  [[nodiscard]] std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t target, std::int32_t) const override {
    const double share = ratio_ * (decay_ + (1 - decay_) * (std::cos(std::numbers::pi * layer / model.num_layers) + 1) / 2);
    return std::max(0, target - group_ + static_cast<std::int32_t>(std::floor(group_ * share + 1e-9)));
  }

  std::int32_t group_;
  double ratio_, decay_;
};

KVLAB_REGISTER(Allocator, GroupShare, "group_share", "of one group a share stays, in deeper layers less",
               "PyramidInfer: Yang et al. 2024, arXiv:2405.12532");

// Weights are (1 - (s - min s) / (max s - min s))^power; s: offline mean cosine of keys with and without other blocks. Other layers pay for
// least shares by weight (ours).
class KeySimilarityLayers final : public LayerAllocator {
 public:
  explicit KeySimilarityLayers(Params& p)
      : similarity_(p, "similarity", -1, 1, "COSINE"),
        power_(p.optional<double>("power", 1.1, 0, 100, "of the weights; 0: all alike")),
        least_(p.optional<double>("least_frac", 0.25, 0, 1, "least tokens of a layer, in budgets")) {}

  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return similarity_.refuses(model); }

 private:
  [[nodiscard]] std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t target, std::int32_t n) const override {
    if (target >= n) return n;
    const auto count = static_cast<std::size_t>(model.num_layers);
    const std::vector<double> weights = weights_of(model.num_layers);
    const auto least = static_cast<std::int32_t>(least_ * target);
    const std::vector<std::int32_t> floor(count, least), cap(count, n);
    std::vector<std::int32_t> counts(count);
    split_total(weights, std::int64_t{target} * model.num_layers, floor, cap, Excess::kByWeight, counts);
    return counts[static_cast<std::size_t>(layer)];
  }

  [[nodiscard]] std::vector<double> weights_of(std::int32_t layers) const {
    std::vector<double> weights(static_cast<std::size_t>(layers), 1.0);
    if (similarity_.is_empty()) return weights;
    const auto [low, high] = similarity_.range();
    const double range = high - low;
    for (std::int32_t l = 0; l < layers && range > 0; ++l)
      weights[static_cast<std::size_t>(l)] = std::pow(1 - (similarity_.of(l) - low) / range, power_);
    return weights;
  }

  LayerValues similarity_;
  double power_, least_;
};

KVLAB_REGISTER(Allocator, KeySimilarityLayers, "key_similarity_layers",
               "layers whose keys change more when blocks are computed alone get more of the budget",
               "EpiCache: Kim et al. 2025, arXiv:2509.17396");

// clip(least + importance * rest, least, factor * B); importance: offline relative output error. The rest goes to other layers.
class SensitivityLayers final : public LayerAllocator {
 public:
  explicit SensitivityLayers(Params& p)
      : importance_(p, "importance", 0, 1e12, "VALUE"),
        least_(p.optional<std::int32_t>("least_tokens", 32, 0, 1 << 20, "tokens that every layer has for certain")),
        factor_(p.optional<double>("most_factor", 3, 1, 1000, "most tokens of a layer, in budgets")) {}

  [[nodiscard]] std::string refuses(const ModelShape& model) const override { return importance_.refuses(model); }

 private:
  [[nodiscard]] std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t target, std::int32_t n) const override {
    if (target >= n) return n;
    const std::int32_t least = std::min(least_, target);
    const auto most = static_cast<std::int32_t>(std::min<double>(n, factor_ * target));
    const auto count = static_cast<std::size_t>(model.num_layers);
    std::vector<double> weights(count, 1.0);
    for (std::int32_t l = 0; l < model.num_layers && !importance_.is_empty(); ++l) weights[static_cast<std::size_t>(l)] = importance_.of(l);
    const std::vector<std::int32_t> none(count, 0), cap(count, most - least);
    std::vector<std::int32_t> counts(count);
    split_total(weights, std::int64_t{target - least} * model.num_layers, none, cap, Excess::kByWeight, counts);
    return least + counts[static_cast<std::size_t>(layer)];
  }

  LayerValues importance_;
  std::int32_t least_;
  double factor_;
};

KVLAB_REGISTER(Allocator, SensitivityLayers, "sensitivity_layers", "layers share the budget by importance measured offline, within bounds",
               "CompressKV: Lin et al. 2025, arXiv:2508.02401");

}  // namespace

}  // namespace kvlab
