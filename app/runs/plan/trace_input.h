#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/config/params.h"
#include "traces/trace.h"

namespace kvlab {

using OpenTrace = std::function<std::unique_ptr<TraceSource>()>;

struct TraceInput {
  OpenTrace open;
  std::function<std::unique_ptr<TraceSource>(std::uint64_t seed)> open_with;  // as drawn by another seed
  std::string remark;                                                         // for the result's note
  bool wants_perfetto = false;
  bool keeps_summary = false;  // no tables of requests or samples
};

// Reads `trace`, `output`, and the first request, to find errors early.
TraceInput read_trace(Params& p, std::uint64_t seed);
// A pipe can only be read once.
void refuse_pipe(const Params& p, const std::string& key);

}  // namespace kvlab
