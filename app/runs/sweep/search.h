#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/runs/plan/slo.h"
#include "base/config/params.h"
#include "base/time.h"

namespace kvlab {

// More load (rate, concurrency) makes limits harder to meet, more hardware (replicas, tp) easier.
enum class SearchKey : std::uint8_t { kRate, kConcurrency, kReplicas, kTp };

// Finds the highest load, or least hardware, with which `attainment` of requests meet the SLO and all latency limits hold.
struct SearchPlan {
  double low = 0, high = 0;  // integers except for rates
  double attainment = 0.9;
  double tolerance_frac = 0.02;  // relative width of the final bracket of rates; others are exact
  SearchKey key = SearchKey::kRate;
  std::vector<LatencyLimit> limits = {};
  bool has_slo = true;       // false: only `limits` decide
  double at_rate_per_s = 0;  // for replicas or tp; 0: the trace's
  Span ramp{0};              // users' first requests are spread evenly over it

  [[nodiscard]] bool is_easier_above() const { return key == SearchKey::kReplicas || key == SearchKey::kTp; }
  [[nodiscard]] double easiest() const { return is_easier_above() ? high : low; }
  [[nodiscard]] double hardest() const { return is_easier_above() ? low : high; }
  [[nodiscard]] bool is_harder(double a, double b) const { return is_easier_above() ? a < b : a > b; }
  // "2.5/s", "16 users", "3 replicas", "tp 4".
  [[nodiscard]] std::string text_of(double value) const;
  // Below `search`.
  [[nodiscard]] const char* key_text() const;
};

// Nullopt without `search`. Throws InputError.
std::optional<SearchPlan> read_search(Params& p, bool has_slo);

struct Probe {
  double value = 0;
  MetricsCollector::Latencies latencies{};
  double counted_s = 0;  // time base of rates
  std::string waits_for;
  std::string refusal;  // why it cannot run, or ""
  // Set by the search.
  bool attains = false;
  std::string binding_limit;  // if it does not attain

  [[nodiscard]] double goodput_per_s() const { return counted_s > 0 ? static_cast<double>(latencies.attained) / counted_s : 0; }
};

struct SearchResult {
  std::vector<Probe> probes;
  std::optional<double> best;  // the hardest that attains; nullopt: none
  std::string note;            // range too low or high, attainment not monotonic

  // The easiest failed probe harder than the best; if none attained, the easiest. May be null.
  [[nodiscard]] const Probe* next_failure(const SearchPlan& plan) const;
};

// most_missed_limit() if attainment was too low, then latency limits not met, joined by "+". Rejected requests count as "rejected". "": all
// met.
std::string binding_limit(const SearchPlan& plan, const MetricsCollector::Latencies& latencies);
// Among judged requests. "": none missed.
std::string most_missed_limit(const MetricsCollector::Latencies& latencies);

// Bisects between the plan's ends, tried first; for tp tries every power of two. Checks monotonicity.
SearchResult search(const SearchPlan& plan, const std::function<Probe(double value)>& probe);

// docs/results.md.
std::string search_csv(const std::string& run_id, const SearchPlan& plan, const SearchResult& result);

}  // namespace kvlab
