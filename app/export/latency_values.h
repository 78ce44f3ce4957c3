#pragma once

#include <cstdint>
#include <vector>

#include "app/export/exported_run.h"

namespace kvlab {

// Of the requests that arrive after the warm-up.
struct LatencyValues {
  std::vector<double> ttft, tpot, e2e;  // ms, of completed ones
  std::int64_t completed = 0, failed = 0;
  std::int64_t prompt_tokens = 0, output_tokens = 0;  // of completed ones
};
LatencyValues latency_values(const std::vector<RequestRow>& requests);

}  // namespace kvlab
