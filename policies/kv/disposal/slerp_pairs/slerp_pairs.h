#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Two layers share directions of keys (or values): tokens [begin[r], end[r]) of row r become |a| e and |b| e with
//   e = (sin((1 - t) w) a/|a| + sin(t w) b/|b|) / sin w,  w the angle between a and b
// except for the retain[r] tokens of largest angle (ties to the lower token) (MiniCache, Liu et al. 2024, arXiv:2405.14366, eq. 2-5). e has
// norm 1. For sin w near 0, e is the mixture (1 - t) a/|a| + t b/|b| if w is near 0, else the direction with the larger share. A vector of
// norm 0 has no part in the direction and stays 0.
struct SlerpPairs {
  KvRows a, b;                                                             // the same rows of two layers
  const std::int32_t *begin = nullptr, *end = nullptr, *retain = nullptr;  // [num_rows]
  bool values = false;
  float t = 0.6F;
};
// Per merged token one direction and two fp16 magnitudes are written.
OpCall call(const SlerpPairs&);
void run_cpu(const SlerpPairs&);
void run_cuda(const SlerpPairs&, CudaContext&);

}  // namespace kvlab
