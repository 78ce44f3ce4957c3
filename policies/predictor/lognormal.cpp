#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "policies/predictor/predictor.h"

namespace kvlab {

namespace {

class Lognormal final : public Predictor {
 public:
  explicit Lognormal(Params& p)
      : sigma_(p.required<double>("sigma", 0, 10, "deviation of the logarithm of estimate / true length")),
        bias_(p.optional<double>("bias", 1, 1e-3, 1e3, "median of estimate / true length")) {}

  [[nodiscard]] bool is_random() const override { return true; }
  std::int32_t output_tokens(const Request& r) override {
    constexpr double kLongest = 1 << 29;
    const double error = Draw{seed(), Purpose::kPrediction, r.number}.lognormal(std::log(bias_), sigma_);
    return static_cast<std::int32_t>(std::clamp(std::round(r.output_limit * error), 1.0, kLongest));
  }

 private:
  double sigma_, bias_;
};

KVLAB_REGISTER(Predictor, Lognormal, "lognormal", "the true output length times a log-normal error", "");

}  // namespace

}  // namespace kvlab
