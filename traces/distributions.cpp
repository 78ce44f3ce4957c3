#include "traces/distributions.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/file_kind.h"
#include "base/run_limit.h"
#include "base/text.h"
#include "traces/formats.h"

namespace kvlab {

namespace {

constexpr std::int32_t kMaxCount = kLargestCount;
const std::string kSmallest = "values below become this";
const std::string kLargest = "values above become this";

std::int32_t rounded(double value, std::int32_t min, std::int32_t max) {
  return static_cast<std::int32_t>(std::llround(std::clamp(value, static_cast<double>(min), static_cast<double>(max))));
}

class Fixed final : public CountDistribution {
 public:
  explicit Fixed(std::int32_t value) : value_(value) {}
  explicit Fixed(Params& p) : value_(p.required<std::int32_t>("value", 1, kMaxCount, "always this")) {}
  std::int32_t operator()(const Draw& /*draw*/) const override { return value_; }

 private:
  std::int32_t value_;
};

class Uniform final : public CountDistribution {
 public:
  explicit Uniform(Params& p)
      : min_(p.required<std::int32_t>("min", 1, kMaxCount, "smallest value")),
        max_(p.required<std::int32_t>("max", min_, kMaxCount, "largest value")) {}
  std::int32_t operator()(const Draw& draw) const override {
    return min_ + static_cast<std::int32_t>(draw.below(static_cast<std::uint64_t>(max_ - min_) + 1));
  }

 private:
  std::int32_t min_, max_;
};

class Lognormal final : public CountDistribution {
 public:
  explicit Lognormal(Params& p) {
    const double median = p.required<double>("median", 1, kMaxCount, "half of the values are below");
    mu_ = std::log(median);
    const bool has_mean = p.has("mean");
    if (has_mean || p.is_describing()) {  // mean = median * exp(sigma^2 / 2)
      const double mean = p.required<double>("mean", median, kMaxCount, "mean before rounding and limits; instead of sigma");
      sigma_ = std::sqrt(2.0 * std::log(mean / median));
    }
    if (!has_mean) sigma_ = p.required<double>("sigma", 0, 10, "deviation of the logarithm");
    min_ = p.optional<std::int32_t>("min", 1, 1, kMaxCount, kSmallest);
    max_ = p.optional<std::int32_t>("max", kMaxCount, min_, kMaxCount, kLargest);
  }
  std::int32_t operator()(const Draw& draw) const override { return rounded(draw.lognormal(mu_, sigma_), min_, max_); }

 private:
  double mu_ = 0, sigma_ = 0;
  std::int32_t min_ = 1, max_ = 1;
};

class Geometric final : public CountDistribution {
 public:
  explicit Geometric(Params& p)
      : mean_(p.required<double>("mean", 1, kMaxCount, "mean before the limit")),
        max_(p.optional<std::int32_t>("max", kMaxCount, 1, kMaxCount, kLargest)) {}
  std::int32_t operator()(const Draw& draw) const override {
    if (mean_ == 1.0) return 1;
    return rounded(1.0 + std::floor(draw.exponential(1.0) / -std::log1p(-1.0 / mean_)), 1, max_);
  }

 private:
  double mean_;
  std::int32_t max_;
};

class ZipfCounts final : public CountDistribution {
 public:
  explicit ZipfCounts(Params& p)
      : min_(p.optional<std::int32_t>("min", 1, 1, kMaxCount, "the most frequent value")),
        zipf_(static_cast<std::uint64_t>(p.required<std::int32_t>("max", min_, kMaxCount, "largest value") - min_) + 1,
              p.required<double>("s", 0, 10, "exponent")) {}
  std::int32_t operator()(const Draw& draw) const override { return min_ - 1 + static_cast<std::int32_t>(zipf_(draw)); }

 private:
  std::int32_t min_;
  Zipf zipf_;
};

class FromTrace final : public CountDistribution {
 public:
  FromTrace(Params& p, TraceColumn column) {
    const std::string file = p.resolve_file(p.text("file", "trace whose lengths are drawn"));
    const std::string format = p.text("format", "", "its format; found out by its first line when absent");
    const TraceFormats formats(p);
    ReaderOptions options;
    options.any_order = true;
    options.uses_arrivals = false;
    if (column == TraceColumn::kOutputTokens) paired_ = p.flag("paired", false, "take the row that the prompt's length came from");
    if (p.is_describing()) return;
    if (special_file(file) == "a pipe")
      p.fail_at("file", "'" + file + "' is a pipe, and lengths are read more than once: save it to a file");
    const std::unique_ptr<RowReader> reader = formats.open(file, format, options);
    for (TraceRequest r; reader->next(r);) values_.push_back(column == TraceColumn::kPromptTokens ? r.prompt_tokens : r.output_tokens);
  }
  std::int32_t operator()(const Draw& draw) const override {
    Draw row = draw;
    if (paired_) row.purpose = Purpose::kPromptLength;
    return std::min(values_[row.below(values_.size())], kMaxCount);
  }

 private:
  std::vector<std::int32_t> values_;
  bool paired_ = false;
};

class ConstantSpan final : public SpanDistribution {
 public:
  explicit ConstantSpan(Span span) : span_(span) {}
  Span operator()(const Draw& /*draw*/) const override { return span_; }

 private:
  Span span_;
};

class ExponentialSpan final : public SpanDistribution {
 public:
  explicit ExponentialSpan(Params& p) : mean_s_(p.required<double>("mean_s", 0, kLongestRunSeconds / 100, "mean")) {}
  Span operator()(const Draw& draw) const override { return from_seconds(draw.exponential(mean_s_)); }

 private:
  double mean_s_;
};

class LognormalSpan final : public SpanDistribution {
 public:
  explicit LognormalSpan(Params& p)
      : mu_(std::log(p.required<double>("median_s", 1e-9, kLongestRunSeconds / 100, "half of the waits are shorter"))),
        sigma_(p.required<double>("sigma", 0, 10, "deviation of the logarithm")) {}
  Span operator()(const Draw& draw) const override { return from_seconds(std::min(draw.lognormal(mu_, sigma_), kLongestRunSeconds)); }

 private:
  double mu_, sigma_;
};

}  // namespace

const std::vector<std::string>& count_names() {
  static const std::vector<std::string> names{"fixed", "uniform", "lognormal", "geometric", "zipf", "trace"};
  return names;
}

const std::vector<std::string>& span_names() {
  static const std::vector<std::string> names{"none", "constant", "exponential", "lognormal"};
  return names;
}

std::unique_ptr<CountDistribution> make_counts(const std::string& name, Params& p, TraceColumn column) {
  if (name == "fixed") return std::make_unique<Fixed>(p);
  if (name == "uniform") return std::make_unique<Uniform>(p);
  if (name == "lognormal") return std::make_unique<Lognormal>(p);
  if (name == "geometric") return std::make_unique<Geometric>(p);
  if (name == "zipf") return std::make_unique<ZipfCounts>(p);
  if (name == "trace") return std::make_unique<FromTrace>(p, column);
  p.fail("unknown distribution '" + name + "'" + suggestion(name, count_names()));
}

std::unique_ptr<SpanDistribution> make_spans(const std::string& name, Params& p) {
  if (name == "none") return std::make_unique<ConstantSpan>(Span{0});
  if (name == "constant")
    return std::make_unique<ConstantSpan>(from_seconds(p.required<double>("s", 0, kLongestRunSeconds, "always this")));
  if (name == "exponential") return std::make_unique<ExponentialSpan>(p);
  if (name == "lognormal") return std::make_unique<LognormalSpan>(p);
  p.fail("unknown distribution '" + name + "'" + suggestion(name, span_names()));
}

namespace {

// True for text meant as a number: distribution names begin with a letter.
bool is_no_name(const std::string& text) { return text.empty() || std::isalpha(static_cast<unsigned char>(text[0])) == 0; }

}  // namespace

std::unique_ptr<CountDistribution> read_counts(Params& p, const std::string& key, const std::string& fallback, TraceColumn column,
                                               const std::string& meaning) {
  auto [name, inner] = p.named(key, fallback, meaning + "; a number, or " + join(count_names(), ", "));
  if (p.is_describing()) return std::make_unique<Fixed>(1);
  long long value = 0;
  if (parse_integer(name, value)) {
    if (value < 1 || value > kMaxCount) p.fail_at(key, "'" + key + "' = " + name + " is outside [1, " + std::to_string(kMaxCount) + "]");
    return std::make_unique<Fixed>(static_cast<std::int32_t>(value));
  }
  if (is_no_name(name)) p.fail_at(key, "'" + key + "' = '" + name + "' is no whole number from 1 to " + std::to_string(kMaxCount));
  std::unique_ptr<CountDistribution> made = make_counts(name, inner, column);
  inner.reject_unread();
  return made;
}

std::unique_ptr<SpanDistribution> read_spans(Params& p, const std::string& key, const std::string& meaning) {
  auto [name, inner] = p.named(key, "none", meaning + "; " + join(span_names(), ", "));
  if (is_no_name(name))
    p.fail_at(key, "'" + key + "' = '" + name + "': write {constant: {s: SECONDS}}, or one of " + join(span_names(), ", "));
  std::unique_ptr<SpanDistribution> made = make_spans(name, inner);
  inner.reject_unread();
  return made;
}

}  // namespace kvlab
