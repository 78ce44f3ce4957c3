#include "policies/order/predicted_order.h"

namespace kvlab {

namespace {

// Shortest job first: by predicted output length. Running requests stay.
class Sjf final : public PredictedOrder {
 public:
  explicit Sjf(Params& p)
      : counts_prompt_(p.flag("counts_prompt", false, "whether the length is prompt and output, instead of the output alone")) {}
  [[nodiscard]] Horizon stable_for() const override { return Horizon::whatever_is_cached(); }

 private:
  [[nodiscard]] std::int64_t rank(RequestId r) const override { return predicted(r) + (counts_prompt_ ? info(r).prompt_tokens : 0); }

  bool counts_prompt_;
};

KVLAB_REGISTER(Order, Sjf, "sjf", "shortest predicted output first; running requests stay", "textbook; needs 'predictor'");

}  // namespace

}  // namespace kvlab
