#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "app/export/exported_run.h"

namespace kvlab {

// In ns from the simulation's start.
struct TokenTimes {
  std::map<std::string, std::vector<std::int64_t>> of_request;  // in order; all completed requests, or none
  std::string missing;                                          // reason if empty, else ""
};

// From the steps in trace.json, checked against `requests`.
TokenTimes token_times(const ExportedRun& run, const std::vector<RequestRow>& requests);

}  // namespace kvlab
