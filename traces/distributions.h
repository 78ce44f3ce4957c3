#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "base/random.h"
#include "base/time.h"

namespace kvlab {

// Whole numbers >= 1: token counts, turns.
class CountDistribution {
 public:
  virtual ~CountDistribution() = default;
  [[nodiscard]] virtual std::int32_t operator()(const Draw& draw) const = 0;
};

enum class TraceColumn : std::uint8_t { kPromptTokens, kOutputTokens };

inline constexpr std::int32_t kLargestCount = 1 << 20;  // sums of tokens stay far below 2^30

// `key: 512` or `key: {NAME: {parameters}}` (docs/traces.md). Without `fallback` the key is required. Numbers are at most kLargestCount.
std::unique_ptr<CountDistribution> read_counts(Params& p, const std::string& key, const std::string& fallback, TraceColumn column,
                                               const std::string& meaning);

// Throw for another name.
const std::vector<std::string>& count_names();
std::unique_ptr<CountDistribution> make_counts(const std::string& name, Params& p, TraceColumn column);

class SpanDistribution {
 public:
  virtual ~SpanDistribution() = default;
  [[nodiscard]] virtual Span operator()(const Draw& draw) const = 0;
};

// `key: {NAME: {parameters}}`, NAME one of none, constant (s), exponential (mean_s), lognormal (median_s, sigma).
std::unique_ptr<SpanDistribution> read_spans(Params& p, const std::string& key, const std::string& meaning);

const std::vector<std::string>& span_names();
std::unique_ptr<SpanDistribution> make_spans(const std::string& name, Params& p);

}  // namespace kvlab
