#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Smallest and largest value of each key channel over the tokens of a page; page p holds tokens p * page_tokens and on of the
// row. Folds tokens from[r] .. len[r] in: the page that begins with a folded token starts anew. Quest, Tang et al. 2024, algorithm 1.
struct PageBounds {
  KvRows kv;
  std::int32_t page_tokens = 0;
  const std::int32_t* from = nullptr;  // [num_rows]
  float* const* bounds = nullptr;      // [num_rows] -> [pages, 2, head_dim]: minimum, then maximum
};
// New keys are read, bounds of their pages written at the keys' precision (and read where the page had begun before); two
// comparisons per channel and token.
OpCall call(const PageBounds&);
void run_cpu(const PageBounds&);
void run_cuda(const PageBounds&, CudaContext&);

}  // namespace kvlab
