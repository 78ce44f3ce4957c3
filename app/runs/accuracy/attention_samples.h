#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "sim/replay/replay.h"
#include "traces/attention_trace.h"

namespace kvlab {

// The full cache's attention is the reference.
struct AttentionSample {
  std::string name;
  AttentionTrace trace;
  AttentionReference reference;
};

// Reads `samples: {NAME: {file: ...} | {record: {...}} | {synthetic: {...}}, ...}`. A recording's `file` must not hold another sample.
// Shared with previous and concurrent runs. Only synthetic samples depend on the seed. Throws InputError.
std::vector<std::shared_ptr<const AttentionSample>> read_attention_samples(Params& samples, std::uint64_t seed);

// `described`: by Params::describing(); reads no file.
void describe_attention_sample(Params& described);

}  // namespace kvlab
