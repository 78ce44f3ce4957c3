#pragma once

#include <cstdint>
#include <limits>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Scores of tokens that must stay become `value`: those at positions < sinks, and those within the last `recent` positions
// before end_position[s] (one past the sequence's last token), and those at positions < all_before[s] where that is given.
struct Protect {
  KvRows kv;
  std::int32_t sinks = 0, recent = 0;
  const std::int32_t* end_position = nullptr;  // [num_sequences]
  const std::int32_t* all_before = nullptr;    // [num_sequences], may be null
  float* scores = nullptr;                     // [kv.total()]
  float value = std::numeric_limits<float>::infinity();
};
OpCall call(const Protect&);
void run_cpu(const Protect&);
void run_cuda(const Protect&, CudaContext&);

}  // namespace kvlab
