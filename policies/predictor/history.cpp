#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "base/ceil_div.h"
#include "base/random.h"
#include "policies/predictor/exact.h"
#include "policies/predictor/predictor.h"

namespace kvlab {

namespace {

// Outputs on this replica; VTC (Sheng et al. 2024, arXiv:2401.00588) takes a client's last 5.
class History final : public Predictor {
  enum class Per : std::uint8_t { kAll, kClient, kClass };

 public:
  explicit History(Params& p)
      : per_(p.choice("per", {{"all", Per::kAll}, {"client", Per::kClient}, {"class", Per::kClass}}, Per::kClient,
                      "whose requests are averaged: all, those of the client, those of the class")),
        last_(p.optional<std::uint32_t>("last", 5, 1, 1 << 20, "how many finished requests are averaged")),
        first_tokens_(p.optional<std::int32_t>("first_tokens", 256, 1, 1 << 29, "estimate while none has finished")) {}

  [[nodiscard]] std::vector<Fact> needs() const override {
    if (per_ == Per::kClient) return {Fact::kClient};
    return per_ == Per::kClass ? std::vector<Fact>{Fact::kClass} : std::vector<Fact>{};
  }

  std::int32_t output_tokens(const Request& r) override {
    const auto found = seen_.find(group_of(r));
    if (found == seen_.end()) return first_tokens_;
    const auto count = static_cast<std::int64_t>(found->second.lengths.size());
    return static_cast<std::int32_t>(std::max<std::int64_t>(1, (found->second.sum + count / 2) / count));
  }

  void on_finish(const Request& r) override {
    Seen& seen = seen_[group_of(r)];
    if (seen.lengths.size() < last_) {
      seen.lengths.push_back(r.output_tokens);
    } else {
      seen.sum -= seen.lengths[seen.next];
      seen.lengths[seen.next] = r.output_tokens;
      seen.next = (seen.next + 1) % last_;
    }
    seen.sum += r.output_tokens;
  }

 private:
  using Group = std::pair<std::int64_t, ClassName>;
  struct Seen {
    std::vector<std::int32_t> lengths;
    std::uint32_t next = 0;  // the oldest of a full ring
    std::int64_t sum = 0;
  };
  [[nodiscard]] Group group_of(const Request& r) const {
    if (per_ == Per::kClient) return {r.facts->client, {}};
    return per_ == Per::kClass ? Group{0, r.facts->request_class} : Group{};
  }

  Per per_;
  std::uint32_t last_;
  std::int32_t first_tokens_;
  std::map<Group, Seen> seen_;
};

KVLAB_REGISTER(Predictor, History, "history", "mean of the latest outputs of the same client or class",
               "the predictor of VTC, Sheng et al. 2024, arXiv:2401.00588");

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
