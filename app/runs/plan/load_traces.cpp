#include "app/runs/plan/load_traces.h"

#include <algorithm>

#include "base/error.h"

namespace kvlab {

bool RescaledTrace::next(TraceRequest& request) {
  if (!source_->next(request)) return false;
  request.arrival = kStart + from_seconds(to_s(request.arrival) * factor_);
  return true;
}

double mean_rate(TraceSource& source, std::uint64_t limit) {
  TraceRequest request;
  std::uint64_t requests = 0;
  Time first = kNever, last = kStart;
  while ((limit == 0 || requests < limit) && source.next(request)) {
    ++requests;
    if (request.is_follow_up) continue;
    first = std::min(first, request.arrival);
    last = std::max(last, request.arrival);
  }
  if (requests < 2 || last <= first) throw InputError("'search' needs a trace whose arrivals span some time, to set their rate");
  return static_cast<double>(requests - 1) / to_s(last - first);
}

}  // namespace kvlab
