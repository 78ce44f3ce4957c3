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
// between two finishes the batch stays the same and the steps are nearly equally long; how many there were is found so:
// 1. Two requests with the same first token differ by exactly their difference in output tokens, unless one was preempted.
//    The median over such pairs says roughly how long a step is.
// 2. Near that, the line (duration over batch) is taken under which short gaps between finishes are whole numbers of steps.
// 3. Each gap is divided by the line's duration and rounded, where the line is sure enough to tell one count from the next;
//    the line is fitted again over what that gave (least absolute deviations), and so on.
// Gaps that stay unsure are left out, and nothing is answered where step 2 finds no such line.
std::vector<StepTime> decode_step_times(const std::vector<ServedRequest>& requests);

}  // namespace kvlab
