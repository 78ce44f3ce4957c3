#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// Lists the dropped tokens of each row that lack the mark (kTokenMark in word `channel`), ascending, and marks them. A full list takes no
// more tokens; unused entries are -1.
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

}  // namespace kvlab
