#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "app/export/exported_run.h"

namespace kvlab {

// Instants at which requests emitted their tokens, in ns from the start of the simulation.
struct TokenTimes {
  std::map<std::string, std::vector<std::int64_t>> of_request;  // each token, in order; all completed requests are there, or none
  std::string missing;                                          // why there are none; "" where they are there
};

// Reads them from the steps of the run's trace.json. They are held against the first and last token and the number of tokens in `requests`.
TokenTimes token_times(const ExportedRun& run, const std::vector<ExportedRequest>& requests);

}  // namespace kvlab
