#pragma once

#include <cstdint>
#include <vector>

#include "traces/logs/real_log.h"

namespace kvlab {

// For decode-only steps by padded batch size.
struct StepTime {
  std::int64_t padded_batch = 0;
  double mean_ms = 0;
  std::int64_t num_steps = 0;
};

// vLLM's CUDA graph sizes (1, 2, 4, multiples of 8 to 256, of 16 to 512); above, the batch itself.
std::int64_t padded_batch(std::int64_t batch);

// From finish times. After the last first token the batch is constant between finishes, except for preemption. Requests with the same first
// token give steps exactly; their median estimates the duration. A duration per gap is fitted so that short gaps are whole numbers of
// steps, changes between gaps are small, and all are near that median; the pairs' step counts choose the weights. Drops gaps more than a
// fifth of a step off, and durations at an end of the searched range.
std::vector<StepTime> decode_step_times(const std::vector<ServedRequest>& requests);

}  // namespace kvlab
