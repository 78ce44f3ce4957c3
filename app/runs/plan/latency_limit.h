#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "serving/metrics.h"

namespace kvlab {

// On a column of summary.csv: mean, percentile or maximum of TTFT, TPOT, ITL or end-to-end latency.
struct LatencyLimit {
  std::string column;  // "ttft_p99_ms"
  Distribution MetricsCollector::Latencies::*metric;
  double Distribution::*statistic;
  std::uint64_t percent = 100;  // 100: mean or maximum
  bool is_of_requests = true;   // false: of gaps
  double limit_ms = 0;

  [[nodiscard]] double value_ms(const MetricsCollector::Latencies& latencies) const;
  // Over completed requests. Rejected ones exceed every request limit: it fails if they exceed the percentile's tail.
  [[nodiscard]] bool is_met(const MetricsCollector::Latencies& latencies) const;
  // Nothing counted and nothing rejected.
  [[nodiscard]] bool is_undecided(const MetricsCollector::Latencies& latencies) const;
};

std::vector<std::string> latency_limit_columns();

// In the order of summary.csv. Throws InputError for a bad value, or an unknown key ending in _ms.
std::vector<LatencyLimit> read_latency_limits(Params& p);

}  // namespace kvlab
