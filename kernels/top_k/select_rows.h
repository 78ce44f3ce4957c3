#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/memory.h"

namespace kvlab {

// Choosing the largest scores of rows, as TopK defines it: what operations that select are launched with. Scores and `out` are device
// memory, the list of rows is host memory.
struct SelectRow {
  const float* scores = nullptr;  // [n]
  void* out = nullptr;
  std::int32_t n = 0;
  std::int32_t keep = 0;  // nothing where it is <= 0, all where it is >= n
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
  std::int32_t floor = 0;  // of its best that count whatever the others have, at most n
};
// How many of each row are among the `budget[p]` largest of rows [p * rows_per_pool, (p + 1) * rows_per_pool). Waits for the stream.
std::vector<std::int32_t> count_pooled(const std::vector<PooledRow>& rows, std::int32_t rows_per_pool,
                                       const std::vector<std::int64_t>& budget, CudaContext& cuda);

}  // namespace kvlab
