#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "app/runs/sweep/experiment.h"
#include "base/csv.h"

namespace kvlab {

class ResultsFolder;

// Key for limits on results. Not part of runs and their ids.
inline constexpr const char* kExpect = "expect";
inline constexpr const char* kExpectationsTable = "expectations.csv";
// Exit status if complete runs miss a limit.
inline constexpr int kUnmetStatus = 3;

struct Expectation {
  std::string metric;
  bool is_max = true;  // else a minimum
  double limit = 0;
};

// Reads `expect: {METRIC: {min: A, max: B}}`; METRIC is a column of summary.csv or its printed heading. Throws InputError with the place
// for an unknown metric, no limit, or min > max.
std::vector<Expectation> read_expectations(Params experiment);
// The limits of an experiment, whose tree no longer has them.
std::vector<Expectation> expectations_of(const Experiment& experiment);

// Checks each row of summary.csv and writes expectations.csv (docs/results.md), or removes it if there are no limits. Prints each
// violation, "run ID: ttft_p99_ms 1,240 > 1,000", and returns their number. Throws InputError if the metric is not a column.
std::size_t check_expectations(const Experiment& experiment, ResultsFolder& folder, std::ostream& err);

}  // namespace kvlab
