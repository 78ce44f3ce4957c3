#include <optional>
#include <vector>

#include "base/random.h"
#include "policies/scheduler/layer_ranges.h"

namespace kvlab {

namespace {

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

}  // namespace

}  // namespace kvlab
