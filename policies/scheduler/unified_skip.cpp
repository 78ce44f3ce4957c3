#include <algorithm>
#include <cmath>
#include <string>

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

}  // namespace

}  // namespace kvlab
