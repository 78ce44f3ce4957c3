#pragma once

#include <cstdint>
#include <vector>

#include "app/real_log.h"

namespace kvlab {

// Mean duration of the decode-only steps of one padded batch size.
struct StepTime {
  std::int64_t padded_batch = 0;
  double mean_ms = 0;
  std::int64_t num_steps = 0;
};

// Rows that a decode batch of `batch` is padded to: the sizes vLLM captures CUDA graphs for (1, 2, 4, multiples of 8 to 256,
// multiples of 16 to 512), and the batch itself above them.
std::int64_t padded_batch(std::int64_t batch);

// Step durations from finish times alone. After the last first token nothing is prefilled (preempted requests aside), so
// between two finishes the batch stays the same and the steps are nearly equally long; how many there were is found in two
// ways. Two requests with the same first token differ by exactly their difference in output tokens, if neither was
// preempted. From such pairs a line, duration over batch, is fitted (least absolute deviations, since preempted requests
// make outliers); then each gap between finishes is divided by the line's duration and rounded, where the line is sure
// enough to tell one count from the next, and the fit is repeated over what it gave. Gaps that stay unsure are left out.
std::vector<StepTime> decode_step_times(const std::vector<ServedRequest>& requests);

}  // namespace kvlab
