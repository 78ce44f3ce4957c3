#pragma once

#include <string>
#include <vector>

#include "app/export/exported_run.h"

namespace kvlab {

// Latencies of the completed requests that arrive after the warm-up, in ms.
struct LatencyValues {
  std::vector<double> ttft, tpot, e2e;
};
LatencyValues latency_values(const std::vector<ExportedRequest>& requests);

// Numbers of the requests that arrive after the warm-up.
struct RequestTotals {
  std::int64_t completed = 0, failed = 0, prompt_tokens = 0, output_tokens = 0;  // tokens of those that completed
};
RequestTotals request_totals(const std::vector<ExportedRequest>& requests);

}  // namespace kvlab
