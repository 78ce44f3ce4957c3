#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// Lists the tokens of each row that are not among the kept ones, ascending.
struct ListDropped {
  PartedRows rows;                  // its `dropped` is not read
  std::int32_t* dropped = nullptr;  // [rows.total_dropped()] out
};
// The kept list is read, the dropped one written.
OpCall call(const ListDropped&);
void run_cpu(const ListDropped&);
void run_cuda(const ListDropped&, CudaContext&);

}  // namespace kvlab
