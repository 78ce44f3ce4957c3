#pragma once

#include <cstdint>
#include <vector>

#include "traces/logs/real_log.h"

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
// 2. A duration is sought for each gap between finishes, under which short gaps are whole numbers of steps, with little
//    change from one gap to the next and near that median, which rules out halves and doubles. The pairs set
//    both limits: the fit that gives their numbers of steps best is taken.
// 3. Each short gap is divided by its duration and rounded; gaps that stay more than a fifth of a step off, as where a
//    preempted request was prefilled again, are left out, and so are gaps whose duration is at an end of the range that is
//    searched: an eighth of that median, and twice it.
std::vector<StepTime> decode_step_times(const std::vector<ServedRequest>& requests);

}  // namespace kvlab
