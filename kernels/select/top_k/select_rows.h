#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// Launch argument of operations that choose the largest scores of rows, as TopK defines it. Scores and `out` are in device memory, the list
// of rows is in CPU memory.
struct SelectRow {
  const float* scores = nullptr;  // [n]
  void* out = nullptr;
  std::int32_t n = 0;
  std::int32_t keep = 0;  // none if <= 0, all if >= n
  std::int32_t base = 0;  // added to indices
};

// out [keep] int32: the chosen tokens, ascending.
void select_indices(const std::vector<SelectRow>& rows, CudaContext& cuda);
// out [n] float: `value` at the chosen tokens, the others as they are. May be the scores.
void mark_largest(const std::vector<SelectRow>& rows, float value, CudaContext& cuda);

// The largest scores of groups of rows, as TopKPooled defines it.
struct PooledRow {
  const float* scores = nullptr;  // [n]
  std::int32_t n = 0;
  std::int32_t floor = 0;  // best scores of the row that always count, at most n
};
// Number of scores of each row among the `budget[p]` largest of rows [p * rows_per_pool, (p + 1) * rows_per_pool). Waits for the stream.
std::vector<std::int32_t> count_pooled(const std::vector<PooledRow>& rows, std::int32_t rows_per_pool,
                                       const std::vector<std::int64_t>& budget, CudaContext& cuda);

}  // namespace kvlab
