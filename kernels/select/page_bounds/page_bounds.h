#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Minimum and maximum of each key channel per page. Folds in tokens [from[r], len[r]); pages that begin with one restart. Quest, Tang et
// al. 2024, algorithm 1.
struct PageBounds {
  KvRows kv;
  std::int32_t page_tokens = 0;
  const std::int32_t* from = nullptr;  // [num_rows]
  float* const* bounds = nullptr;      // [num_rows] -> [pages, 2, head_dim]: minimum, maximum
};
OpCall call(const PageBounds&);
void run_cpu(const PageBounds&);
void run_cuda(const PageBounds&, CudaContext&);

}  // namespace kvlab
