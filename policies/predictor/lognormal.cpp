#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "base/random.h"
#include "policies/predictor/exact.h"
#include "policies/predictor/predictor.h"

namespace kvlab {

namespace {

KVLAB_REGISTER(Predictor, ExactPredictor, "exact", "the true output length: an oracle", "");

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

enum BucketDraw : std::uint64_t { kIsRight, kWhich };

// Wrong buckets are equally likely.
class Bucket final : public Predictor {
 public:
  explicit Bucket(Params& p)
      : max_tokens_(p.optional<std::int32_t>("max_output_tokens", 2048, 1, 1 << 29, "upper end of the last bucket")),
        buckets_(p.optional<std::int32_t>("buckets", 10, 1, 1 << 20, "number of buckets of equal width")),
        accuracy_(p.optional<double>("accuracy_frac", 1, 0, 1, "share of requests whose bucket is the true one")) {}

  [[nodiscard]] bool is_random() const override { return accuracy_ < 1; }
  std::int32_t output_tokens(const Request& r) override {
    const std::int32_t width = ceil_div(max_tokens_, buckets_);
    const std::int32_t right = std::min((r.output_limit - 1) / width, buckets_ - 1);
    const auto draw = [&](std::uint64_t step) { return Draw{seed(), Purpose::kPrediction, r.number, step}; };
    std::int32_t bucket = right;
    if (buckets_ > 1 && draw(kIsRight).uniform() >= accuracy_) {
      bucket = static_cast<std::int32_t>(draw(kWhich).below(static_cast<std::uint64_t>(buckets_ - 1)));
      if (bucket >= right) ++bucket;
    }
    return std::min((bucket + 1) * width, max_tokens_);
  }

 private:
  std::int32_t max_tokens_, buckets_;
  double accuracy_;
};

KVLAB_REGISTER(Predictor, Bucket, "bucket", "the upper end of a length bucket, right with a given probability",
               "S3, Jin et al. 2023, arXiv:2306.06000");

}  // namespace

}  // namespace kvlab
