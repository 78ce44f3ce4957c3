#pragma once

#include <filesystem>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "app/results/results.h"
#include "traces/logs/real_log.h"

namespace kvlab {

// Compares results with a real engine's log and writes validation.csv, throughput.csv and validation_steps.csv into the folder
// (docs/results.md); of a load generator's log the last, and without start times throughput.csv too, cannot be made. The runs are one
// configuration under several seeds. If `trace.jitter_ms` is an axis, the runs with jitter are the ensemble, whose median and range are
// reported, and those without are printed beside it; else all runs are the ensemble. out: where to print the tables; null: nowhere.
// InputError where the results cannot be compared.
void validate_results(const std::string& real_requests, ResultsFolder& results, std::ostream* out);

// Completed requests of a requests.csv by run.
std::map<std::string, std::vector<ServedRequest>> read_completed(const std::filesystem::path& file);

}  // namespace kvlab
