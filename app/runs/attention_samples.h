#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/params.h"
#include "sim/replay/reference.h"
#include "traces/attention_trace.h"

namespace kvlab {

// A sample to replay, with the full cache's attention to compare with.
struct AttentionSample {
  std::string name;
  AttentionTrace trace;
  AttentionReference reference;
};

// Reads the mapping `samples: {NAME: {file: ...} | {record: {...}} | {synthetic: {...}}, ...}` of a replay experiment. A recording is made
// now, by the model it names, with everything that a policy may ask for; with `file` as well it is stored there and reused; a file that
// holds another sample is refused. Runs of a program share samples: those of the run before, and of runs in progress, are not read again.
// Only synthetic samples differ between seeds. Errors: InputError with file:line:column.
std::vector<std::shared_ptr<const AttentionSample>> read_attention_samples(Params& samples, std::uint64_t seed);

// Documents the keys of one sample. `described`: made by Params::describing(), so no file is read.
void describe_attention_sample(Params& described);

}  // namespace kvlab
