#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "sim/replay/reference.h"
#include "traces/attention_trace.h"

namespace kvlab {

// A sample with the full cache's attention as reference.
struct AttentionSample {
  std::string name;
  AttentionTrace trace;
  AttentionReference reference;
};

// Reads `samples: {NAME: {file: ...} | {record: {...}} | {synthetic: {...}}, ...}`. A recording runs its model and has all that a policy
// may need; `file` stores it for reuse, and must not hold another sample. Shares samples with previous and concurrent runs. Only synthetic
// ones depend on the seed. Throws InputError with file:line:column.
std::vector<std::shared_ptr<const AttentionSample>> read_attention_samples(Params& samples, std::uint64_t seed);

// Documents a sample's keys. `described`: by Params::describing(); reads no file.
void describe_attention_sample(Params& described);

}  // namespace kvlab
