#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "traces/logs/real_log.h"

namespace kvlab {

// A run as a validation compares it.
struct SimulatedRun {
  std::vector<ServedRequest> requests;   // those that completed
  std::map<std::string, double> gap_ms;  // statistic -> ms of the gaps between tokens, which are in summary.csv alone
};

// The runs of a results folder, by their part in a validation.
struct SimulatedRuns {
  std::string first_id;  // of a run, for what all have in common
  std::vector<SimulatedRun> ensemble;
  std::vector<SimulatedRun> unjittered;  // empty unless jitter is an axis that has 0 among its values

  // A client measures from when it sends a request.
  void count_from_arrival();
};

// Completed requests of a requests.csv by run.
std::map<std::string, std::vector<ServedRequest>> read_completed(const std::filesystem::path& file);

// InputError: an axis other than the jitter varies, or there are no runs.
SimulatedRuns load_simulated_runs(const std::filesystem::path& folder);

// One file of a validation, and the text that is printed of it.
struct Comparison {
  std::string csv, text;
};

// Six decimals; "" of NaN.
std::string ms_text(double value);
// "+1.25%"; "" of NaN.
std::string percent_text(double frac);

}  // namespace kvlab
