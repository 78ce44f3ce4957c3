#pragma once

#include <cstdint>
#include <limits>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Scores at positions outside [begin[s], end[s]), or inside, become `value`. With `above_max` it is the largest other score of the sequence
// in this layer (over all its KV heads) plus 1, or 1 without any.
struct Protect {
  KvRows kv;
  const std::int32_t *begin = nullptr, *end = nullptr;  // [num_sequences] positions
  float* scores = nullptr;                              // [kv.total()]
  bool inside = false, above_max = false;
  float value = std::numeric_limits<float>::infinity();
};
OpCall call(const Protect&);
void run_cpu(const Protect&);
void run_cuda(const Protect&, CudaContext&);

}  // namespace kvlab
