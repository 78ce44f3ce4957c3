#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// As TopK. Scores and `out`: device memory, row list: CPU memory.
struct SelectRow {
  const float* scores = nullptr;  // [n]
  void* out = nullptr;
  std::int32_t n = 0;
  std::int32_t keep = 0;  // none if <= 0, all if >= n
  std::int32_t base = 0;
};

// out [keep] int32, ascending.
void select_indices(const std::vector<SelectRow>& rows, CudaContext& cuda);
// out [n] float: `value` at chosen tokens. May be the scores.
void mark_largest(const std::vector<SelectRow>& rows, float value, CudaContext& cuda);

// Counts for budget[p] of pool p; `keep`: a row's floor, 0 to n. Waits for the stream.
std::vector<std::int32_t> count_pooled(const std::vector<SelectRow>& rows, std::int32_t rows_per_pool,
                                       const std::vector<std::int64_t>& budget, CudaContext& cuda);

}  // namespace kvlab
