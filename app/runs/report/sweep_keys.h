#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "app/runs/sweep/experiment.h"
#include "base/config/params.h"

namespace kvlab {

class ResultsFolder;

// Limits on results. Not part of runs and their ids.
inline constexpr const char* kExpect = "expect";
inline constexpr const char* kExpectationsTable = "expectations.csv";
// Exit status.
inline constexpr int kUnmetStatus = 3;

struct Expectation {
  std::string metric;
  bool is_max = true;  // else a minimum
  double limit = 0;
};

// Reads `expect: {METRIC: {min: A, max: B}}`; METRIC is a column of summary.csv or its printed heading. Throws InputError for an unknown
// metric, no limit, or min > max.
std::vector<Expectation> read_expectations(Params experiment);
// The experiment's tree no longer has them.
std::vector<Expectation> expectations_of(const Experiment& experiment);

// Writes expectations.csv (docs/results.md), or removes it without limits. Prints violations and returns their number. Throws InputError if
// the metric is not a column.
std::size_t check_expectations(const Experiment& experiment, ResultsFolder& folder, std::ostream& err);

// Not part of runs and their ids.
inline constexpr const char* kFigures = "figures";

// Checks `figures: {NAME: {size: [3.4, 2.4], ...}}` (docs/figures.md); plots/ checks other names. Throws InputError.
void check_figure_settings(Params experiment);

}  // namespace kvlab
