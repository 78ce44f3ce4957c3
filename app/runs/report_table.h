#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/results/results.h"
#include "base/csv.h"

namespace kvlab {

// The results of a sweep, for the summary that is printed.
struct SweepReport {
  CsvTable summary;  // summary.csv: run, axes, seed and the rest
  std::size_t num_axes = 0;
  bool has_seeds = false;  // more than one
  const ResultsFolder& folder;
};

// Prints what varies and those of `metrics` that have values: a row per run, or the mean of a configuration's seeds.
void print_table(const SweepReport& report, const std::vector<std::string>& metrics, std::ostream& out);
// Prints the remarks of the runs, each text once.
void print_remarks(const SweepReport& report, std::ostream& out);

// manifest.json of a run; empty: there is none.
nlohmann::ordered_json manifest_of_run(const ResultsFolder& folder, const std::string& id);

}  // namespace kvlab
