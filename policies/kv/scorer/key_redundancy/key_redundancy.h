#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// How much a row's keys repeat each other. C[j, i] = cos(k_j, k_i) over all tokens of the row, 0 for i = j. In each line j the entry of the
// newest i with C > similar becomes 0, so that the newest of similar keys does not count as redundant; if there is no such i, the entry of
// token 0 becomes 0. out[i] = softmax over i of the mean of C[j, i] over j. R-KV, Cai et al. 2025, arXiv:2505.24133, as its code computes
// it.
struct KeyRedundancy {
  KvRows kv;
  float similar = 0.5F;
  float* out = nullptr;  // [kv.total()]
};
// A product over the channels per pair of tokens; keys are read once.
OpCall call(const KeyRedundancy&);
void run_cpu(const KeyRedundancy&);
void run_cuda(const KeyRedundancy&, CudaContext&);

}  // namespace kvlab
