#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// CaM, Zhang et al. 2024, section 3. Dropped token i looks at the next m = min(window, remaining) kept tokens of its row; with probability
//   p = min(1, mass_i / mean of their mass)     (0 / 0, or no later kept token: 0)
// v_i / m is added to each of their values. Keys stay. The draw is keyed by (seeds[s], KV head, position of the token).
struct MergeWindow {
  PartedRows rows;
  std::int32_t window = 32;
  const float* mass = nullptr;          // [rows.kv.total()] accumulated attention, >= 0
  const std::int64_t* seeds = nullptr;  // [num_sequences]
};
// Counted as if every dropped token were merged into a full window.
OpCall call(const MergeWindow&);
void run_cpu(const MergeWindow&);
void run_cuda(const MergeWindow&, CudaContext&);

}  // namespace kvlab
