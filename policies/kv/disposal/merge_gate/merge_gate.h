#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// Takes back merges of tokens that are not similar enough: target becomes -1 where the similarity is below the threshold tau. Without
// `thresholds`, tau = fixed. With them, tau is a running mean per sequence over all its heads (D2O, Wan et al. 2025, section 3.3): the
// first time tau <- mean similarity of the tokens dropped now, later tau <- (1 - share) tau + share * that mean. With head_mean the j-th
// dropped tokens of all heads decide together, by the mean of their similarities. Rows without kept tokens do not take part. On a GPU
// thresholds are in CPU memory: with `running` the call waits for the stream.
struct MergeGate {
  PartedRows rows;
  const float* similarity = nullptr;           // [total_dropped()]
  std::int32_t* target = nullptr;              // [total_dropped()] in and out
  bool running = false;                        // thresholds are used; a flag, because with shapes alone the pointer is null
  float* thresholds = nullptr;                 // line threshold_of[s] is sequence s's; below -1: none yet
  const std::int32_t* threshold_of = nullptr;  // [num_sequences]
  float share = 0.5F;
  float fixed = 0.0F;
  bool head_mean = false;
};
// Similarities and targets are read, targets written; four operations per dropped token.
OpCall call(const MergeGate&);
void run_cpu(const MergeGate&);
void run_cuda(const MergeGate&, CudaContext&);

}  // namespace kvlab
