#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/results/run_settings.h"
#include "app/why/pressure.h"
#include "app/why/why_metric.h"

namespace kvlab {

struct Change {
  std::string label;  // "2 replicas", "fp8 KV"
  std::vector<std::string> set;
  bool finds_load = false;  // searches for another load and reports its tries
};

struct CurrentLoad {
  double rate_per_s = 0;  // of the trace; 0: unknown
  bool attains = false;
};

// Another replica (per pool), twice the tp, fp8 KV, more KV memory, other limits per step, prefix caching, other loads (higher if the SLO
// is attained).
std::vector<Change> changes_of(const RunSettings& settings, const SummaryRow& summary, const WhyMetric& metric, const CurrentLoad& load);

struct Tried {
  std::string label;
  std::vector<std::string> set;
  double value = 0;       // NaN: none
  double attainment = 0;  // NaN: nothing judged
  bool attains = false;
  std::int64_t gpus = 0;         // 0: unknown
  bool is_highest_load = false;  // that attains
  std::string error;
};

class ScratchRuns {
 public:
  ScratchRuns();
  ~ScratchRuns();
  ScratchRuns(const ScratchRuns&) = delete;
  ScratchRuns& operator=(const ScratchRuns&) = delete;

  // Executes a resolved.yaml with other values. Throws InputError if it cannot run; Interrupted.
  std::filesystem::path run(const std::filesystem::path& resolved, const std::vector<std::string>& set);

 private:
  std::filesystem::path folder_;
  int count_ = 0;
};

// In order until `within_s` have passed or the user stops; `skipped` names the rest. wanted: share that must meet the SLO.
std::vector<Tried> try_changes(const std::filesystem::path& run, const std::vector<Change>& changes, const WhyMetric& metric, double wanted,
                               double within_s, std::vector<std::string>& skipped);
// Best first, failed ones last.
void sort_by_effect(std::vector<Tried>& tried, const WhyMetric& metric);

}  // namespace kvlab
