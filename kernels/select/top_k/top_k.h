#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// The keep[r] largest scores per row, ascending by index; ties go to the lower index, NaN is -infinity. peer_ties: ties as torch.topk on a
// CPU, by std::nth_element and std::partial_sort.
struct TopK {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;        // [num_rows + 1]
  const float* scores = nullptr;              // [first[num_rows]]
  const std::int32_t* keep = nullptr;         // [num_rows] 0 <= keep[r] <= row length
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  std::int32_t* index = nullptr;              // [index_first[num_rows]] out
  bool peer_ties = false;
};
OpCall call(const TopK&);
void run_cpu(const TopK&);
void run_cuda(const TopK&, CudaContext&);  // without peer_ties

// keep[r]: a row's share of the `budget[p]` largest scores of its pool (such as a layer's KV heads). A row's best floor_tokens[r] always
// count, first. Ties go to the lower row, then the lower index. On a GPU row_scores and `keep` (complete on return) are in CPU memory.
struct TopKPooled {
  std::int32_t num_pools = 0, rows_per_pool = 1;
  const std::int64_t* first = nullptr;         // [num_pools * rows_per_pool + 1]
  const float* scores = nullptr;               // [first[...]]
  const float* const* row_scores = nullptr;    // as first: instead of `scores`, if rows are not contiguous
  const std::int64_t* budget = nullptr;        // [num_pools]
  const std::int32_t* floor_tokens = nullptr;  // [num_pools * rows_per_pool], null: none
  std::int32_t* keep = nullptr;                // [num_pools * rows_per_pool] out
  // Peer ties (CPU only) as kvpress's torch.topk on a CPU: each row's floor, which then scores highest, and of the pool all but the worst
  // (kPeerDropped) or the best `budget` (kPeerKept).
  enum class Ties : std::uint8_t { kLowerIndex, kPeerDropped, kPeerKept };
  Ties ties = Ties::kLowerIndex;
  // [first[...]] may be `scores`; null: not written. kPeerDropped: -infinity for dropped tokens; kPeerKept: +infinity for floors.
  float* marked = nullptr;
};
OpCall call(const TopKPooled&);
void run_cpu(const TopKPooled&);
void run_cuda(const TopKPooled&, CudaContext&);

}  // namespace kvlab
