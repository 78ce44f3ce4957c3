#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/results/run_settings.h"
#include "app/why/why_metric.h"
#include "base/csv.h"

namespace kvlab {

class SummaryRow {
 public:
  SummaryRow() = default;
  // Throws InputError if summary.csv is missing or empty.
  explicit SummaryRow(const std::filesystem::path& run);
  [[nodiscard]] std::string text(const std::string& column) const;  // "" if absent
  // NaN if not a number.
  [[nodiscard]] double number(const std::string& column) const;

 private:
  CsvTable table_;
};

// From the first arrival of the slowest requests to the end of the last.
struct WhyWindow {
  double begin_ns = 0, end_ns = 0;
};

// "KV memory was full from 220 s on". Full: less than a tenth of the blocks is free or only cached, as in `waits_for`.
std::vector<std::string> full_in(const std::filesystem::path& run, const SummaryRow& summary, const WhyWindow& window);
// Waiting requests, preemptions, overload.
std::vector<std::string> load_in(const std::filesystem::path& run, const SummaryRow& summary);

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
