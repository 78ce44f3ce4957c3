#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// The row's most similar kept key, by cosine: target [total_dropped()] is a place in the kept list (-1: none). Norm 0: cosine 0. Ties go to
// the lower place.
struct NearestKept {
  PartedRows rows;
  std::int32_t* target = nullptr;  // out
  float* similarity = nullptr;     // out
};
OpCall call(const NearestKept&);
void run_cpu(const NearestKept&);
void run_cuda(const NearestKept&, CudaContext&);

}  // namespace kvlab
