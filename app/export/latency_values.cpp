#include "app/export/latency_values.h"

namespace kvlab {

LatencyValues latency_values(const std::vector<RequestRow>& requests) {
  LatencyValues values;
  for (const RequestRow& r : requests) {
    if (r.is_warm_up) continue;
    if (!r.is_completed()) {
      ++values.failed;
      continue;
    }
    ++values.completed;
    values.prompt_tokens += r.prompt_tokens;
    values.output_tokens += r.output_tokens;
    values.ttft.push_back(r.ttft_ms());
    values.e2e.push_back(r.e2e_ms());
    if (const auto tpot = r.tpot_ms()) values.tpot.push_back(*tpot);
  }
  return values;
}

}  // namespace kvlab
