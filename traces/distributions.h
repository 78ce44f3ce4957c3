#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/params.h"
#include "base/random.h"
#include "base/time.h"

namespace kvlab {

// A distribution of whole numbers >= 1: token counts, turns of a session.
class CountDistribution {
 public:
  virtual ~CountDistribution() = default;
  [[nodiscard]] virtual std::int32_t operator()(const Draw& draw) const = 0;
};

// Which column of a trace file an empirical distribution takes.
enum class TraceColumn : std::uint8_t { kPromptTokens, kOutputTokens };

inline constexpr std::int32_t kLargestCount = 1 << 20;  // prefix, context and new tokens together stay far below 2^30

// Reads `key: 512` or `key: {NAME: {parameters}}` with NAME one of
//   fixed      value
//   uniform    min, max (both included)
//   lognormal  median, and sigma (of the logarithm) or mean; rounded, then held inside [min, max]
//   geometric  mean; 1 + failures before the first success, at most max
//   zipf       s, min, max: P(min - 1 + k) proportional to k^-s
//   trace      file, format, block_size: lengths of that file's requests, drawn with replacement; `paired` (for output
//              lengths): from the same row as the prompt's
// An empty `fallback` makes the key required. A number is at most kLargestCount.
std::unique_ptr<CountDistribution> read_counts(Params& p, const std::string& key, const std::string& fallback, TraceColumn column,
                                               const std::string& meaning);

// The names above, and the distribution of one of them from its parameters. Error: another name.
const std::vector<std::string>& count_names();
std::unique_ptr<CountDistribution> make_counts(const std::string& name, Params& p, TraceColumn column);

// A distribution of waiting times.
class SpanDistribution {
 public:
  virtual ~SpanDistribution() = default;
  [[nodiscard]] virtual Span operator()(const Draw& draw) const = 0;
};

// Reads `key: {NAME: {parameters}}`, NAME one of none, constant (s), exponential (mean_s), lognormal (median_s, sigma).
std::unique_ptr<SpanDistribution> read_spans(Params& p, const std::string& key, const std::string& meaning);

// The same for waiting times.
const std::vector<std::string>& span_names();
std::unique_ptr<SpanDistribution> make_spans(const std::string& name, Params& p);

}  // namespace kvlab
