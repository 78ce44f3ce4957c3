#include "app/runs/plan/latency_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace kvlab {

namespace {

using Latencies = MetricsCollector::Latencies;

struct NamedMetric {
  const char* name;
  Distribution Latencies::*metric;
};
constexpr std::array<NamedMetric, 4> kLimitedMetrics = {
    {{"ttft", &Latencies::ttft}, {"tpot", &Latencies::tpot}, {"itl", &Latencies::itl}, {"e2e", &Latencies::e2e}}};

struct NamedStatistic {
  const char* name;
  double Distribution::*statistic;
  std::uint64_t percent;
};
constexpr std::array<NamedStatistic, 6> kLimitedStatistics = {{{"mean", &Distribution::mean, 100},
                                                               {"p50", &Distribution::p50, 50},
                                                               {"p90", &Distribution::p90, 90},
                                                               {"p95", &Distribution::p95, 95},
                                                               {"p99", &Distribution::p99, 99},
                                                               {"max", &Distribution::max, 100}}};

// Without values.
std::vector<LatencyLimit> all_latency_limits() {
  std::vector<LatencyLimit> all;
  for (const NamedMetric& m : kLimitedMetrics)
    for (const NamedStatistic& s : kLimitedStatistics)
      all.push_back({fmt::format("{}_{}_ms", m.name, s.name), m.metric, s.statistic, s.percent, m.metric != &Latencies::itl, 0});
  return all;
}

}  // namespace

std::vector<std::string> latency_limit_columns() {
  std::vector<std::string> columns;
  for (const LatencyLimit& limit : all_latency_limits()) columns.push_back(limit.column);
  return columns;
}

double LatencyLimit::value_ms(const Latencies& latencies) const { return latencies.*metric.*statistic * 1e-6; }

bool LatencyLimit::is_met(const Latencies& latencies) const {
  if (is_of_requests && latencies.rejected * 100 > (100 - percent) * latencies.counted) return false;
  return value_ms(latencies) <= limit_ms;
}

bool LatencyLimit::is_undecided(const Latencies& latencies) const {
  return (latencies.*metric).count == 0 && (!is_of_requests || latencies.rejected == 0);
}

std::vector<LatencyLimit> read_latency_limits(Params& p) {
  std::vector<LatencyLimit> found;
  std::vector<std::string> known;
  for (LatencyLimit& limit : all_latency_limits()) {
    known.push_back(limit.column);
    if (!p.has(limit.column)) continue;
    limit.limit_ms = p.required<double>(limit.column, 1e-6, 9e9, "limit of this column of summary.csv");
    found.push_back(limit);
  }
  for (const std::string& key : p.keys()) {
    if (!key.ends_with("_ms") || std::find(known.begin(), known.end(), key) != known.end()) continue;
    p.fail_at(key, fmt::format("'{}' is no limit: write ttft, tpot, itl or e2e, then _mean, _p50, _p90, _p95, _p99 or _max, then _ms, for "
                               "example ttft_p99_ms",
                               key));
  }
  return found;
}

}  // namespace kvlab
