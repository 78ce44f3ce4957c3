#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/params.h"
#include "traces/trace.h"

namespace kvlab {

using OpenTrace = std::function<std::unique_ptr<TraceSource>()>;

// The request trace of an experiment.
struct TraceInput {
  OpenTrace open;                                                             // each call reads it from its start
  std::function<std::unique_ptr<TraceSource>(std::uint64_t seed)> open_with;  // the same as another seed draws it
  std::string remark;                                                         // for the result's note
  bool wants_perfetto = false;                                                // the run writes trace.json
};

// Reads `trace` and `output`, and its first request, since a fault there is one of the file or its options.
TraceInput read_trace(Params& p, std::uint64_t seed);
// Refuses a pipe as the file that `key` names: it can be read only once.
void refuse_pipe(const Params& p, const std::string& key);

}  // namespace kvlab
