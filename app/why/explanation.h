#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/why/run_times.h"
#include "app/why/variant.h"
#include "app/why/why_metric.h"

namespace kvlab {

struct LimitUse {
  std::string limit;
  double value_ms = 0, limit_ms = 0;
};

struct Explanation {
  std::string run;
  std::string title;  // "scheduler=sarathi"; "": a single run
  WhyMetric metric;
  double value = 0;                   // NaN: none
  std::optional<double> limit_ms;     // per request
  double attainment = 0, wanted = 0;  // attainment NaN: nothing judged
  std::string binding, waits_for;     // columns of summary.csv
  bool is_search = false;
  bool is_end_of_range = false;  // a search found the best value of its range
  // The requests that decide the value.
  std::size_t num_slowest = 0, num_requests = 0;
  TimeParts parts{};      // summed over them, ns
  TimeParts all_parts{};  // over all with this latency, ns
  bool knows_preemptions = true;
  WhyWindow arrived;  // first to last of them, ns
  std::vector<std::string> full, load;
  std::vector<LimitUse> limits;
  double rate_per_s = 0;
  std::vector<std::string> remarks;
  std::vector<Tried> tried;
  std::vector<std::string> skipped;

  [[nodiscard]] bool attains() const { return attainment >= wanted; }
};

// For the SLO limit missed most, else P99 TTFT; for a search, its result.
WhyMetric usual_metric(const std::filesystem::path& run);

// From the search or named SLO, else 0.9.
double wanted_share_of(const std::filesystem::path& run);

// again: repeats the run if its files lack requests or instants of preemptions. Throws InputError for a run without requests.csv or the
// metric, or neither simulated nor served.
Explanation explain(const std::filesystem::path& run, const std::string& title, const WhyMetric& metric, bool again);
void add_tries(const std::filesystem::path& run, double within_s, Explanation& e);

// Events, when and where, and helpful changes. The last is absent if nothing was tried.
std::vector<std::string> lines_of(const Explanation& e);
nlohmann::ordered_json json_of(const Explanation& e);

}  // namespace kvlab
