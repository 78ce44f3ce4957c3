#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/params.h"
#include "serving/metrics.h"

namespace kvlab {

// A limit on a column of summary.csv: a mean, percentile or maximum of TTFT, TPOT, gaps between tokens (ITL) or end-to-end latency.
struct LatencyLimit {
  std::string column;  // "ttft_p99_ms"
  Distribution MetricsCollector::Latencies::*metric;
  double Distribution::*statistic;
  std::uint64_t percent = 100;  // of the percentile; 100 of a mean or maximum
  bool is_of_requests = true;   // false: of gaps
  double limit_ms = 0;

  [[nodiscard]] double value_ms(const MetricsCollector::Latencies& latencies) const;
  // Latencies are those of completed requests. A rejected request is over every limit of requests, so more of them than the percentile
  // leaves out fail it.
  [[nodiscard]] bool is_met(const MetricsCollector::Latencies& latencies) const;
  // Nothing is there to compare: no request (or gap) was counted, and none was rejected.
  [[nodiscard]] bool is_undecided(const MetricsCollector::Latencies& latencies) const;
};

// The columns that may have one.
std::vector<std::string> latency_limit_columns();

// Reads every key of `p` that names such a column, in the order of summary.csv. InputError on a value out of range, and on a key that ends
// in _ms and names no column.
std::vector<LatencyLimit> read_latency_limits(Params& p);

}  // namespace kvlab
