#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// Lists the dropped tokens of each row that lack the mark (bit 0 of word `channel`), ascending, and marks them. A full list takes no more
// tokens; unused entries are -1.
struct MarkDropped {
  PartedRows rows;
  std::int32_t channel = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1] the lists
  std::int32_t* index = nullptr;        // [first[num_rows]] out
};
// Marks of the dropped tokens are read, the listed ones' written, with 4 bytes per entry of both lists.
OpCall call(const MarkDropped&);
void run_cpu(const MarkDropped&);
void run_cuda(const MarkDropped&, CudaContext&);

// Scores of marked tokens become -infinity, except where they are +infinity.
struct LowerMarked {
  KvRows kv;
  std::int32_t channel = 0;
  float* scores = nullptr;  // [kv.total()]
};
// Marks and scores are read, scores written; two comparisons per token.
OpCall call(const LowerMarked&);
void run_cpu(const LowerMarked&);
void run_cuda(const LowerMarked&, CudaContext&);

}  // namespace kvlab
