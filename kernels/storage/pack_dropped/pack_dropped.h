#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// Copies K, V and positions of the dropped tokens into consecutive memory, from where transfers take them to another tier.
struct PackDropped {
  PartedRows rows;
  float* packed = nullptr;           // [total_dropped(), 2, head_dim] out, K before V
  std::int32_t* position = nullptr;  // [total_dropped()] out
};
// K and V are read and written once in the model's precision, with a position (read and written) and 4 bytes of list per token.
OpCall call(const PackDropped&);
void run_cpu(const PackDropped&);
void run_cuda(const PackDropped&, CudaContext&);  // `packed` is of the type of `kv`.

}  // namespace kvlab
