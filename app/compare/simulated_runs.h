#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "traces/logs/real_log.h"

namespace kvlab {

struct SimulatedRun {
  std::vector<ServedRequest> requests;   // completed
  std::map<std::string, double> gap_ms;  // statistic -> gap between tokens, only in summary.csv
};

struct SimulatedRuns {
  std::string first_id;  // of any run, for common settings
  std::vector<SimulatedRun> ensemble;
  std::vector<SimulatedRun> unjittered;  // empty unless jitter is an axis with value 0

  // As a client measures.
  void count_from_arrival();
};

std::map<std::string, std::vector<ServedRequest>> read_completed(const std::filesystem::path& file);

// Throws InputError if an axis other than jitter varies, or there are no runs.
SimulatedRuns load_simulated_runs(const std::filesystem::path& folder);

struct Comparison {
  std::string csv, text;
};

// Six decimals; "" for NaN.
std::string ms_text(double value);
// "+1.25%"; "" for NaN.
std::string percent_text(double frac);

}  // namespace kvlab
