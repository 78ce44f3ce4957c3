#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "base/random.h"
#include "base/time.h"

namespace kvlab {

// Whole numbers >= 1: token counts, turns.
using CountDistribution = std::function<std::int32_t(const Draw& draw)>;
using SpanDistribution = std::function<Span(const Draw& draw)>;

enum class TraceColumn : std::uint8_t { kPromptTokens, kOutputTokens };

inline constexpr std::int32_t kLargestCount = 1 << 20;  // sums of tokens stay far below 2^30

// `key: 512` or `key: {NAME: {parameters}}` (docs/traces.md). Without `fallback` the key is required. Numbers are at most kLargestCount.
CountDistribution read_counts(Params& p, const std::string& key, const std::string& fallback, TraceColumn column,
                              const std::string& meaning);

// Throw for another name.
const std::vector<std::string>& count_names();
CountDistribution make_counts(const std::string& name, Params& p, TraceColumn column);

// `key: {NAME: {parameters}}`, NAME one of none, constant (s), exponential (mean_s), lognormal (median_s, sigma).
SpanDistribution read_spans(Params& p, const std::string& key, const std::string& meaning);

const std::vector<std::string>& span_names();
SpanDistribution make_spans(const std::string& name, Params& p);

}  // namespace kvlab
