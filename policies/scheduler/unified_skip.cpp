#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "policies/scheduler/layer_ranges.h"

namespace kvlab {

namespace {

// Every token passes round(L / s) layers, first and last included.
class UnifiedSkip final : public LayerSkipper {
 public:
  explicit UnifiedSkip(Params& p)
      : LayerSkipper(p), speedup_(p.required<double>("speedup", 1, kMostLayers, "layers of the model for one that is kept")) {
    if (p.is_describing()) return;
    const auto kept = static_cast<std::int32_t>(std::lround(layers() / speedup_));
    if (kept < std::min(2, layers()))
      p.fail_at("speedup", "'speedup' = " + number_text(speedup_) + " keeps fewer than 2 of the model's " + std::to_string(layers()) +
                               " layers, and the first and the last are kept: give at most " + number_text(layers() / 2.0));
    keeps_all_ = kept == layers();
    for (std::int32_t i = 0; i < kept && !keeps_all_; ++i) set_.set(static_cast<std::size_t>(place_of(i, kept)));
  }

 private:
  // Layer i of `kept`: i (L - 1) / (kept - 1), rounded.
  [[nodiscard]] std::int32_t place_of(std::int32_t i, std::int32_t kept) const {
    return (2 * i * (layers() - 1) + (kept - 1)) / (2 * (kept - 1));
  }

  void skip(const ReplicaView& /*view*/, StepPlan& plan) override {
    if (keeps_all_ || plan.entries.empty()) return;
    const std::int32_t set = add_set(plan, set_);
    for (StepEntry& entry : plan.entries) entry.layer_set = set;
  }

  double speedup_;
  bool keeps_all_ = true;
  LayerSet set_;
};

KVLAB_REGISTER(Scheduler, UnifiedSkip, "unified_skip", "the same evenly spread layers for every token, over another scheduler's batches",
               "Liu et al. 2024, arXiv:2404.06954 (Unified Layer Skipping)");

// Layers are skipped by independent draws; prompts pass all. A layer's weights are read if any row passes it. Router time and accuracy are
// not modelled.
class FirstSkip final : public LayerSkipper, public DrawsBySeed {
 public:
  explicit FirstSkip(Params& p)
      : LayerSkipper(p),
        skip_frac_(p.required<double>("skip_frac", 0, 0.99, "mean share of the layers that an output token skips")),
        seed_(told_setting(p).seed) {}

 private:
  void skip(const ReplicaView& view, StepPlan& plan) override {
    for (StepEntry& entry : plan.entries) {
      if (!is_decode(view, entry)) continue;
      const LayerSet& set = set_of(view, entry.request);
      if (set.count() < static_cast<std::size_t>(layers())) entry.layer_set = add_set(plan, set);
    }
  }

  const LayerSet& set_of(const ReplicaView& view, RequestId r) {
    std::optional<LayerSet>& set = slot(sets_, r);
    if (!set) set = drawn(view.info(r).number);
    return *set;
  }

  [[nodiscard]] LayerSet drawn(std::uint64_t request) const {
    LayerSet set;
    for (std::size_t l = 0; l < static_cast<std::size_t>(layers()); ++l)
      set[l] = Draw{seed_, Purpose::kLayers, request, 0, l}.uniform() >= skip_frac_;
    return set;
  }

  void forget(RequestId r) override {
    if (index(r) < sets_.size()) sets_[index(r)].reset();
  }

  double skip_frac_;
  std::uint64_t seed_;
  std::vector<std::optional<LayerSet>> sets_;
};

KVLAB_REGISTER(Scheduler, FirstSkip, "first_skip", "each request's output skips layers of its own, over another scheduler's batches",
               "Jain et al. 2024, arXiv:2410.12513 (FiRST)");

// Position t passes the first and last D(t) layers. D falls linearly, so KV of a passed layer is complete.
class SkipDecode final : public LayerSkipper {
 public:
  explicit SkipDecode(Params& p)
      : LayerSkipper(p),
        most_layers_(p.optional<std::int32_t>("most_layers", 0, 0, kMostLayers,
                                              "layers of prompts and of the first output position; 0: all of the model's")),
        least_layers_(p.required<std::int32_t>("least_layers", 1, kMostLayers, "layers from output position over_tokens on")),
        over_tokens_(p.required<std::int32_t>("over_tokens", 1, 1 << 24, "output positions over which the layers fall, along a line")),
        warmup_layers_(p.optional<std::int32_t>("warmup_layers", 1, 0, kMostLayers,
                                                "of the layers that a token passes, those at the bottom of the model; the others are the "
                                                "top ones")) {
    check_layers(p, "most_layers", most_layers_, layers());
    check_layers(p, "least_layers", least_layers_, layers());
    if (p.is_describing()) return;
    if (most_layers_ == 0) most_layers_ = layers();
    if (least_layers_ > most_layers_) p.fail_at("least_layers", "'least_layers' is above 'most_layers': the layers of a token only fall");
    if (warmup_layers_ > least_layers_)
      p.fail_at(p.has("warmup_layers") ? "warmup_layers" : "least_layers",
                "'warmup_layers' is above 'least_layers': it is the part of them at the bottom of the model");
  }

 private:
  // D(t), rounded.
  [[nodiscard]] std::int32_t layers_at(std::int64_t position) const {
    const std::int64_t at = std::min<std::int64_t>(position, over_tokens_), fall = std::int64_t{most_layers_} - least_layers_;
    return most_layers_ - static_cast<std::int32_t>((2 * fall * at + over_tokens_) / (2 * std::int64_t{over_tokens_}));
  }

  [[nodiscard]] LayerSet set_of(std::int32_t count) const {
    LayerSet set;
    for (std::int32_t l = 0; l < warmup_layers_; ++l) set.set(static_cast<std::size_t>(l));
    for (std::int32_t l = layers() - (count - warmup_layers_); l < layers(); ++l) set.set(static_cast<std::size_t>(l));
    return set;
  }

  void skip(const ReplicaView& view, StepPlan& plan) override {
    std::array<std::int32_t, kMostLayers + 1> set_with{};  // by number of layers; 0: none
    for (StepEntry& entry : plan.entries) {
      const Request& r = view.info(entry.request);
      const std::int32_t count = is_decode(view, entry) ? layers_at(r.computed_tokens - r.prompt_tokens) : most_layers_;
      if (count == layers()) continue;
      std::int32_t& set = set_with[static_cast<std::size_t>(count)];
      if (set == 0) set = add_set(plan, set_of(count));
      entry.layer_set = set;
    }
  }

  std::int32_t most_layers_, least_layers_, over_tokens_, warmup_layers_;
};

KVLAB_REGISTER(Scheduler, SkipDecode, "skip_decode", "fewer layers for later output positions, over another scheduler's batches",
               "Del Corro et al. 2023, arXiv:2307.02628 (SkipDecode)");

}  // namespace

}  // namespace kvlab
