#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// C[j, i] = cos(k_j, k_i) over all tokens of the row, 0 for i = j. In each line j the entry of the newest i with C > similar becomes 0; if
// there is none, the entry of token 0. out[i] = softmax over i of the mean of C[j, i] over j. As in the authors' code.
struct KeyRedundancy {
  KvRows kv;
  float similar = 0.5F;
  float* out = nullptr;  // [kv.total()]
};
OpCall call(const KeyRedundancy&);
void run_cpu(const KeyRedundancy&);
void run_cuda(const KeyRedundancy&, CudaContext&);

}  // namespace kvlab
