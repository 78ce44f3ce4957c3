#pragma once

#include <cstdint>
#include <vector>

#include "app/export/exported_run.h"

namespace kvlab {

// Without the warm-up.
struct LatencyValues {
  std::vector<double> ttft, tpot, e2e;  // ms, of completed requests
  std::int64_t completed = 0, failed = 0;
  std::int64_t prompt_tokens = 0, output_tokens = 0;  // of completed requests
};
LatencyValues latency_values(const std::vector<RequestRow>& requests);

}  // namespace kvlab
