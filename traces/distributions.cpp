#include "traces/distributions.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "base/file_kind.h"
#include "base/text.h"
#include "base/time.h"
#include "traces/formats.h"

namespace kvlab {

namespace {

constexpr std::int32_t kMaxCount = kLargestCount;
const std::string kSmallest = "values below become this";
const std::string kLargest = "values above become this";

std::int32_t rounded(double value, std::int32_t min, std::int32_t max) {
  return static_cast<std::int32_t>(std::llround(std::clamp(value, static_cast<double>(min), static_cast<double>(max))));
}

CountDistribution fixed(std::int32_t value) {
  return [=](const Draw& /*draw*/) { return value; };
}

CountDistribution uniform(Params& p) {
  const auto min = p.required<std::int32_t>("min", 1, kMaxCount, "smallest value");
  const auto max = p.required<std::int32_t>("max", min, kMaxCount, "largest value");
  return [=](const Draw& draw) { return min + static_cast<std::int32_t>(draw.below(static_cast<std::uint64_t>(max - min) + 1)); };
}

CountDistribution lognormal(Params& p) {
  const double median = p.required<double>("median", 1, kMaxCount, "half of the values are below"), mu = std::log(median);
  double sigma = 0;
  const bool has_mean = p.has("mean");
  if (has_mean || p.is_describing()) {  // mean = median * exp(sigma^2 / 2)
    const double mean = p.required<double>("mean", median, kMaxCount, "mean before rounding and limits; instead of sigma");
    sigma = std::sqrt(2.0 * std::log(mean / median));
  }
  if (!has_mean) sigma = p.required<double>("sigma", 0, 10, "deviation of the logarithm");
  const auto min = p.optional<std::int32_t>("min", 1, 1, kMaxCount, kSmallest);
  const auto max = p.optional<std::int32_t>("max", kMaxCount, min, kMaxCount, kLargest);
  return [=](const Draw& draw) { return rounded(draw.lognormal(mu, sigma), min, max); };
}

CountDistribution geometric(Params& p) {
  const double mean = p.required<double>("mean", 1, kMaxCount, "mean before the limit");
  const auto max = p.optional<std::int32_t>("max", kMaxCount, 1, kMaxCount, kLargest);
  return [=](const Draw& draw) {
    return mean == 1.0 ? 1 : rounded(1.0 + std::floor(draw.exponential(1.0) / -std::log1p(-1.0 / mean)), 1, max);
  };
}

CountDistribution zipf_counts(Params& p) {
  const auto min = p.optional<std::int32_t>("min", 1, 1, kMaxCount, "the most frequent value");
  const Zipf zipf(static_cast<std::uint64_t>(p.required<std::int32_t>("max", min, kMaxCount, "largest value") - min) + 1,
                  p.required<double>("s", 0, 10, "exponent"));
  return [=](const Draw& draw) { return min - 1 + static_cast<std::int32_t>(zipf(draw)); };
}

CountDistribution from_trace(Params& p, TraceColumn column) {
  const std::string file = p.resolve_file(p.text("file", "trace whose lengths are drawn"));
  const std::string format = p.text("format", "", "its format; found out by its first line when absent");
  const TraceFormats formats(p);
  ReaderOptions options;
  options.any_order = true;
  options.uses_arrivals = false;
  const bool is_output = column == TraceColumn::kOutputTokens;
  const bool is_paired = is_output && p.flag("paired", false, "take the row that the prompt's length came from");
  if (p.is_describing()) return {};
  if (special_file(file) == "a pipe") p.fail_at("file", "'" + file + "' is a pipe, and lengths are read more than once: save it to a file");
  const std::unique_ptr<RowReader> reader = formats.open(file, format, options);
  std::vector<std::int32_t> values;
  for (TraceRequest r; reader->next(r);) values.push_back(is_output ? r.output_tokens : r.prompt_tokens);
  return [values = std::move(values), is_paired](Draw row) {
    if (is_paired) row.purpose = Purpose::kPromptLength;
    return std::min(values[row.below(values.size())], kMaxCount);
  };
}

SpanDistribution constant(Span span) {
  return [=](const Draw& /*draw*/) { return span; };
}

SpanDistribution exponential(Params& p) {
  const double mean_s = p.required<double>("mean_s", 0, kLongestRunS / 100, "mean");
  return [=](const Draw& draw) { return from_seconds(draw.exponential(mean_s)); };
}

SpanDistribution lognormal_spans(Params& p) {
  const double mu = std::log(p.required<double>("median_s", 1e-9, kLongestRunS / 100, "half of the waits are shorter"));
  const double sigma = p.required<double>("sigma", 0, 10, "deviation of the logarithm");
  return [=](const Draw& draw) { return from_seconds(std::min(draw.lognormal(mu, sigma), kLongestRunS)); };
}

}  // namespace

const std::vector<std::string>& count_names() {
  static const std::vector<std::string> names{"fixed", "uniform", "lognormal", "geometric", "zipf", "trace"};
  return names;
}

const std::vector<std::string>& span_names() {
  static const std::vector<std::string> names{"none", "constant", "exponential", "lognormal"};
  return names;
}

CountDistribution make_counts(const std::string& name, Params& p, TraceColumn column) {
  if (name == "fixed") return fixed(p.required<std::int32_t>("value", 1, kMaxCount, "always this"));
  if (name == "uniform") return uniform(p);
  if (name == "lognormal") return lognormal(p);
  if (name == "geometric") return geometric(p);
  if (name == "zipf") return zipf_counts(p);
  if (name == "trace") return from_trace(p, column);
  p.fail("unknown distribution '" + name + "'" + suggestion(name, count_names()));
}

SpanDistribution make_spans(const std::string& name, Params& p) {
  if (name == "none") return constant(Span{0});
  if (name == "constant") return constant(from_seconds(p.required<double>("s", 0, kLongestRunS, "always this")));
  if (name == "exponential") return exponential(p);
  if (name == "lognormal") return lognormal_spans(p);
  p.fail("unknown distribution '" + name + "'" + suggestion(name, span_names()));
}

namespace {

// True for text meant as a number: distribution names begin with a letter.
bool is_no_name(const std::string& text) { return text.empty() || std::isalpha(static_cast<unsigned char>(text[0])) == 0; }

}  // namespace

CountDistribution read_counts(Params& p, const std::string& key, const std::string& fallback, TraceColumn column,
                              const std::string& meaning) {
  auto [name, inner] = p.named(key, fallback, meaning + "; a number, or " + join(count_names(), ", "));
  if (p.is_describing()) return fixed(1);
  long long value = 0;
  if (parse_integer(name, value)) {
    if (value < 1 || value > kMaxCount) p.fail_at(key, "'" + key + "' = " + name + " is outside [1, " + std::to_string(kMaxCount) + "]");
    return fixed(static_cast<std::int32_t>(value));
  }
  if (is_no_name(name)) p.fail_at(key, "'" + key + "' = '" + name + "' is no whole number from 1 to " + std::to_string(kMaxCount));
  CountDistribution made = make_counts(name, inner, column);
  inner.reject_unread();
  return made;
}

SpanDistribution read_spans(Params& p, const std::string& key, const std::string& meaning) {
  auto [name, inner] = p.named(key, "none", meaning + "; " + join(span_names(), ", "));
  if (is_no_name(name))
    p.fail_at(key, "'" + key + "' = '" + name + "': write {constant: {s: SECONDS}}, or one of " + join(span_names(), ", "));
  SpanDistribution made = make_spans(name, inner);
  inner.reject_unread();
  return made;
}

}  // namespace kvlab
