#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/cuda/memory.h"
#include "kernels/ops.h"

namespace kvlab {

// The largest scores. Ties go to the lower row, then the lower index; NaN is -infinity. peer_ties (CPU only): as torch.topk on a CPU, by
// std::nth_element and std::partial_sort.
//   kIndices  of each row the keep[r] largest, ascending by index
//   kCounts   of each pool of rows (such as a layer's KV heads) the budget[p] largest: count[r] are the row's. Its best floor_tokens[r] go
//             first. On a GPU row_scores and `count` (complete on return) are in CPU memory
struct TopK {
  enum class Kind : std::uint8_t { kIndices, kCounts };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;        // [num_rows + 1]
  const float* scores = nullptr;              // [first[num_rows]]
  const std::int32_t* keep = nullptr;         // [num_rows] 0 <= keep[r] <= row length
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  std::int32_t* index = nullptr;              // [index_first[num_rows]] out
  bool peer_ties = false;

  // kCounts
  Kind kind = Kind::kIndices;
  std::int32_t rows_per_pool = 1;
  const float* const* row_scores = nullptr;    // [num_rows] instead of `scores`, if rows are not contiguous
  const std::int64_t* budget = nullptr;        // [num_rows / rows_per_pool]
  const std::int32_t* floor_tokens = nullptr;  // [num_rows], null: none
  std::int32_t* count = nullptr;               // [num_rows] out
  // With peer_ties as kvpress's torch.topk: a row's floor scores highest; the pool keeps its best scores, or drops its worst.
  bool drops = false;
  // [first[num_rows]] with peer_ties, may be `scores` or null. +infinity for floors, or with `drops` -infinity for dropped tokens.
  float* marked = nullptr;
};
OpCall call(const TopK&);
void run_cpu(const TopK&);
void run_cuda(const TopK&, CudaContext&);

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
