#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Per row the `keep[r]` tokens of largest score; ties go to the lower index; indices ascending. NaN counts as -infinity. With `peer_ties`
// equal scores are ordered as std::nth_element and std::partial_sort leave them when comparing scores alone, like torch.topk on a CPU: only
// for recipes that mirror a peer.
struct TopK {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;        // [num_rows + 1] rows in `scores`
  const float* scores = nullptr;              // [first[num_rows]]
  const std::int32_t* keep = nullptr;         // [num_rows], 0 <= keep[r] <= row length
  const std::int64_t* index_first = nullptr;  // [num_rows + 1] rows in `index`
  std::int32_t* index = nullptr;              // [index_first[num_rows]] out
  bool peer_ties = false;
};
OpCall call(const TopK&);
void run_cpu(const TopK&);
void run_cuda(const TopK&, CudaContext&);  // without peer_ties

// The same budget over several rows at once: of all tokens of the rows of one pool (say the KV heads of a layer) the `budget[p]` largest
// are counted per row, keep[r] of them. Every row gets at least `floor_tokens[r]` (its best ones are taken first). Ties go to the lower
// row, then the lower index. On a GPU scores are in device memory, `row_scores` is a CPU array of device pointers, and `keep` is in CPU
// memory and holds the result on return.
struct TopKPooled {
  std::int32_t num_pools = 0, rows_per_pool = 1;
  const std::int64_t* first = nullptr;         // [num_pools * rows_per_pool + 1]
  const float* scores = nullptr;               // [first[...]]
  const float* const* row_scores = nullptr;    // [num_pools * rows_per_pool] in place of `scores`, if rows are not contiguous; may be null
  const std::int64_t* budget = nullptr;        // [num_pools] tokens over all rows of the pool
  const std::int32_t* floor_tokens = nullptr;  // [num_pools * rows_per_pool], null: none
  std::int32_t* keep = nullptr;                // [num_pools * rows_per_pool] out
  // kPeerDropped, kPeerKept: ties are broken as in NVIDIA kvpress's calls of torch.topk on a CPU: each row's floor, whose tokens then have
  // the largest score, and of the pool all but the worst, or the best `budget`. On the CPU alone.
  enum class Ties : std::uint8_t { kLowerIndex, kPeerDropped, kPeerKept };
  Ties ties = Ties::kLowerIndex;
  // [first[...]] may be `scores`; null: not written. With kPeerDropped tokens that go get -infinity, with kPeerKept those of the floors
  // +infinity.
  float* marked = nullptr;
};
OpCall call(const TopKPooled&);
void run_cpu(const TopKPooled&);
void run_cuda(const TopKPooled&, CudaContext&);

}  // namespace kvlab
