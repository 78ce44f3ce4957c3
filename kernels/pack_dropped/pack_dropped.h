#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// Copies K and V of the dropped tokens into consecutive memory, from where one transfer takes them to another tier:
// packed [total_dropped(), 2, head_dim], K before V.
struct PackDropped {
  PartedRows rows;
  float* packed = nullptr;  // out
};
// K and V are read and written once in the model's precision, with 4 bytes of list per token.
OpCall call(const PackDropped&);
void run_cpu(const PackDropped&);
void run_cuda(const PackDropped&, CudaContext&);  // `packed` is of the type of `kv`.

}  // namespace kvlab
