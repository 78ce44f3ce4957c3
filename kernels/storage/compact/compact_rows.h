#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Moves kept tokens to the front, in order: K, V, positions and statistics. The caller updates lengths.
struct CompactRows {
  KvRows kv;
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;        // ascending within a row
};
OpCall call(const CompactRows&);
void run_cpu(const CompactRows&);
// On a GPU index_first is in CPU memory.
void run_cuda(const CompactRows&, CudaContext&);

}  // namespace kvlab
