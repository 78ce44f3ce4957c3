#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// Runs of neighbouring tokens with similar keys (KVMerger, Wang et al. 2024, algorithm 1): tokens i and i + 1 of a row are linked
// when cos(k_i, k_i+1) >= min_cosine. A dropped token's target is the nearest kept token (in tokens of the row; the earlier of two)
// that a chain of links through dropped tokens reaches, as a place in the row's kept list; -1: none. A key of norm 0 has no links.
struct KeyRuns {
  PartedRows rows;
  float min_cosine = 0.75F;
  std::int32_t* target = nullptr;  // [total_dropped()] out
};
// Every key is read once, one product with the neighbour and one for the norm.
OpCall call(const KeyRuns&);
void run_cpu(const KeyRuns&);
void run_cuda(const KeyRuns&, CudaContext&);

}  // namespace kvlab
