#pragma once

#include <cstdint>

#include "base/ceil_div.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// HiP attention, Lee et al. 2024: finds `keep[r]` of `blocks[r]` key blocks. The blocks form keep[r] groups of neighbours. In each round
// every group splits in two, each half is judged by q . its middle token (mean over the row's query heads), and the best keep[r] halves
// stay, until groups are single blocks. Ties go to the earlier half.
struct HalvingSearch {
  KvRows kv;
  const Queries* queries = nullptr;  // [num_sequences], the last of each
  std::int32_t block_tokens = 1;
  const std::int32_t* base = nullptr;    // [num_rows] first token of block 0
  const std::int32_t* blocks = nullptr;  // [num_rows]
  const std::int32_t* keep = nullptr;    // [num_rows] <= blocks
  const std::int64_t* first = nullptr;   // [num_rows + 1] prefix sums of keep
  std::int32_t* block = nullptr;         // [first[num_rows]] out, ascending

  [[nodiscard]] std::int32_t rounds(std::int32_t r) const {
    std::int32_t n = 0;
    for (std::int32_t largest = keep[r] == 0 ? 1 : ceil_div(blocks[r], keep[r]); largest > 1; largest = (largest + 1) / 2) ++n;
    return n;
  }
};
// Each round reads 2 * keep keys, also for groups that cannot be split.
OpCall call(const HalvingSearch&);
void run_cpu(const HalvingSearch&);
void run_cuda(const HalvingSearch&, CudaContext&);

}  // namespace kvlab
