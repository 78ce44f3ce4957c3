#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Two layers share the directions of their keys (or values): tokens [begin[r], end[r]) of row r in both become |a| e and |b| e with
//   e = (sin((1 - t) w) a/|a| + sin(t w) b/|b|) / sin w,  w the angle between a and b
// except for the retain[r] tokens with the largest angle (ties to the lower token), which do not change (MiniCache, Liu et al. 2024,
// arXiv:2405.14366, eq. 2-5). e has norm 1. If sin w is nearly 0, e is the plain mixture (1 - t) a/|a| + t b/|b| for w near 0, and the
// direction with the larger share for w near pi. A vector of norm 0 takes no part in the direction and stays 0.
struct SlerpPairs {
  KvRows a, b;                                                             // the same rows of two layers
  const std::int32_t *begin = nullptr, *end = nullptr, *retain = nullptr;  // [num_rows]
  bool values = false;
  float t = 0.6F;
};
// Both vectors are read; of merged tokens one direction and two fp16 magnitudes are written. Angle and mixture: 14 operations per
// element.
OpCall call(const SlerpPairs&);
void run_cpu(const SlerpPairs&);
void run_cuda(const SlerpPairs&, CudaContext&);

}  // namespace kvlab
