#include <algorithm>
#include <limits>

#include "policies/order/aging.h"
#include "policies/order/predicted_order.h"

namespace kvlab {

namespace {

// A waiting request overtakes the running one with the most tokens to come.
class Srpt final : public PredictedOrder {
 public:
  explicit Srpt(Params& p)
      : preemptive_(p.flag("preemptive", true, "whether a shorter waiting request preempts a running one")),
        mode_(p.choice("preemption", {{"recompute", Preemption::kRecompute}, {"swap", Preemption::kSwap}}, Preemption::kRecompute,
                       "what becomes of the KV of a request that is overtaken")),
        aging_(p) {}
  [[nodiscard]] std::optional<Preemption> overtaking() const override { return preemptive_ ? std::optional(mode_) : std::nullopt; }
  [[nodiscard]] bool overtakes(RequestId waiting, RequestId running) const override { return rank(waiting) < rank(running); }

  // Ranks only fall until a request reaches its estimate.
  [[nodiscard]] Horizon stable_for() const override {
    std::int64_t plans = std::numeric_limits<std::int64_t>::max();
    for (const RequestId r : view().running()) plans = std::min(plans, remaining(r) - 1);
    return {plans, false};
  }

 private:
  [[nodiscard]] std::int64_t rank(RequestId r) const override { return aging_.key(remaining(r), info(r).arrival); }

  bool preemptive_;
  Preemption mode_;
  Aging aging_;
};

KVLAB_REGISTER(Order, Srpt, "srpt", "fewest predicted output tokens still to come first, preemptive",
               "textbook (Schrage 1968); the oracle in FastServe, Wu et al. 2023, arXiv:2305.05920; needs 'predictor'");

}  // namespace

}  // namespace kvlab
