#pragma once

#include <iosfwd>
#include <string>

#include "app/results/results.h"

namespace kvlab {

// Writes validation.csv, throughput.csv (needs start times) and validation_steps.csv (docs/results.md); of a log of statistics only the
// first. The runs are one configuration under several seeds; those jittered by `trace.jitter_ms` are the ensemble. out: null: no tables.
// Throws InputError if results cannot be compared.
void validate_results(const std::string& real_requests, ResultsFolder& results, std::ostream* out);

}  // namespace kvlab
