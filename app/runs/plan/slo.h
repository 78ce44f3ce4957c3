#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/runs/plan/input_files.h"
#include "base/config/params.h"
#include "serving/metrics.h"
#include "serving/qoe.h"

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

std::string slo_folder();

// Reads {summary, source, attainment, ttft_ms, tpot_ms, tbt_ms, e2e_ms}. Throws InputError.
Params read_slo_file(const std::string& file);

// Reads `slo` (docs/experiments.md). Throws InputError.
Slo read_slo(Params& p);

// "ttft", "tpot" and "e2e" of the named preset; empty without one.
std::vector<std::pair<std::string, double>> preset_limits_ms(Params p);

// The preset's, else 0.9.
double usual_attainment(Params p);

// Reads `qoe`; nullopt if absent.
std::optional<ExpectedText> read_expected_text(Params& p);

// Refuses targets of classes or clients that the trace lacks. Reads traces until all names were seen; generators know them.
void check_slo_groups(Params& p, const Slo& slo, const OpenTrace& open);

}  // namespace kvlab
