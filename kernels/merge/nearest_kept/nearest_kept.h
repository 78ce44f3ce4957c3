#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// The most similar kept key of the row, by cosine: target [total_dropped()] is a place in the kept list (-1: none). A key of norm 0 has
// cosine 0 with all. Ties go to the lower place.
struct NearestKept {
  PartedRows rows;
  std::int32_t* target = nullptr;  // out
  float* similarity = nullptr;     // out
};
OpCall call(const NearestKept&);
void run_cpu(const NearestKept&);
void run_cuda(const NearestKept&, CudaContext&);

}  // namespace kvlab
