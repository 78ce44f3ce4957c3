#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// For each dropped token the kept token of its row with the most similar key, by cosine: target [total_dropped()] is a place in the
// row's kept list (-1 where the row keeps none), similarity the cosine in [-1, 1]. A key of norm 0 has cosine 0 with all. Ties go to
// the lower place.
struct NearestKept {
  PartedRows rows;
  std::int32_t* target = nullptr;  // out
  float* similarity = nullptr;     // out
};
// Every key is read once; one product per dropped and kept token of a row, and one per token for its norm.
OpCall call(const NearestKept&);
void run_cpu(const NearestKept&);
void run_cuda(const NearestKept&, CudaContext&);

}  // namespace kvlab
