#pragma once

#include <iosfwd>
#include <string>

#include "app/results/results.h"

namespace kvlab {

// Compares results with measurements of a real engine and writes validation.csv, throughput.csv and validation_steps.csv into the folder
// (docs/results.md); of a load generator's log the last, and without start times throughput.csv too, cannot be made. A file without rows
// per request gives validation.csv alone, of the statistics that it states. The runs are one
// configuration under several seeds. If `trace.jitter_ms` is an axis, the runs with jitter are the ensemble, whose median and range are
// reported, and those without are printed beside it; else all runs are the ensemble. out: where to print the tables; null: nowhere.
// InputError where the results cannot be compared.
void validate_results(const std::string& real_requests, ResultsFolder& results, std::ostream* out);

}  // namespace kvlab
