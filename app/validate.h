#pragma once

#include <iosfwd>
#include <string>

namespace kvlab {

// Compares results with a real engine's log and writes validation.csv, throughput.csv and steps.csv into the folder
// (docs/results.md). The runs are one configuration under several seeds. Where `trace.jitter_ms` is an axis, the runs with
// jitter are the ensemble, whose median and range are reported, and those without are printed beside it; else all runs are
// the ensemble. out: where to print the tables; null: nowhere. InputError where the results cannot be compared.
void validate_results(const std::string& real_requests, const std::string& results_folder, std::ostream* out);

}  // namespace kvlab
