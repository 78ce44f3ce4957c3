#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Positions as in a sequence that begins with each row's first token: position[slot of token i] = i. On the CPU alone.
struct LocalPositions {
  KvRows kv;
  std::int32_t* position = nullptr;  // [kv.pool_tokens]; slots of no row are not written
};
OpCall call(const LocalPositions&);
void run_cpu(const LocalPositions&);

}  // namespace kvlab
