#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Votes for candidates, the n_s = first[s + 1] - first[s] tokens of a sequence's rows from begin[s] on:
//   out[first[s] + i] = sum over KV heads r and query heads h of r's group of softmax_i(q_h . k_r[begin[s] + i] / sqrt(d)),
// softmax over the candidates in fp32. Soft voting of TokenSelect, Wu et al. 2024, arXiv:2411.02886, section 4.2.
struct HeadVotes {
  KvRows kv;
  const Queries* queries = nullptr;     // [kv.num_sequences()], the last of each; none: no candidates
  const std::int32_t* begin = nullptr;  // [kv.num_sequences()]
  const std::int64_t* first = nullptr;  // [kv.num_sequences() + 1]
  float* out = nullptr;                 // [first[kv.num_sequences()]]
};
// The softmax counts one multiply-add.
OpCall call(const HeadVotes&);
void run_cpu(const HeadVotes&);
void run_cuda(const HeadVotes&, CudaContext&);  // all arrays but the queries' data, K and `out` are in CPU memory

}  // namespace kvlab
