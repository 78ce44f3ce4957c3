#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Merging sets before eviction (KVMerger, Wang et al. 2024, algorithm 1): neighbouring tokens i and i + 1 of a row are linked when
// cos(k_i, k_i+1) >= min_cosine and neither is protected (a score of +infinity). A chain of links is a set, its pivot the token of the
// largest score, the earliest of equal ones. Scores of all other members become -1 / score: below every pivot, in the same order.
// Scores are attention, >= 0. A key of norm 0 has no links.
struct KeyPivots {
  KvRows kv;
  float min_cosine = 0.75F;
  float* scores = nullptr;  // [kv.total()] in and out
};
// Every key is read once, one product with the neighbour and one for the norm; scores are read and written.
OpCall call(const KeyPivots&);
void run_cpu(const KeyPivots&);
void run_cuda(const KeyPivots&, CudaContext&);

}  // namespace kvlab
