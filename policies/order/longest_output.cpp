#include "policies/order/predicted_order.h"

namespace kvlab {

namespace {

// SGLang's `lof` (python/sglang/srt/managers/schedule_policy.py, v0.5.9), by prediction instead of the stated limit.
class LongestOutput final : public PredictedOrder {
 public:
  explicit LongestOutput(Params& /*p*/) {}
  [[nodiscard]] RequestId victim(RequestId usual) const override { return usual; }
  [[nodiscard]] Horizon stable_for() const override { return Horizon::whatever_is_cached(); }

 private:
  [[nodiscard]] std::int64_t rank(RequestId r) const override { return -predicted(r); }
};

KVLAB_REGISTER(Order, LongestOutput, "longest_output", "longest predicted output first; running requests stay",
               "SGLang 'lof', Zheng et al. 2023, arXiv:2312.07104");

}  // namespace

}  // namespace kvlab
