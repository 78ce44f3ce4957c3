#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Mean over all query heads of a layer of the product of the sequence's last query with each token's key:
//   out[first[s] + i] = mean over h of q_h . k_i / sqrt(d), without a softmax.
// A KV head's query heads are averaged before the product. PromptDistill, Jin et al. 2025, arXiv:2503.23274.
struct HeadLogits {
  KvRows kv;                            // rows of a sequence hold the same tokens
  const Queries* queries = nullptr;     // [kv.num_sequences()], the last one of each counts
  const std::int64_t* first = nullptr;  // [kv.num_sequences() + 1]
  float* out = nullptr;                 // [first[kv.num_sequences()]]
};
// Keys are read once per KV head at their precision, products written.
OpCall call(const HeadLogits&);
void run_cpu(const HeadLogits&);

}  // namespace kvlab
