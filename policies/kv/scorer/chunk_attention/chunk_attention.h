#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Attention inside chunks of `chunk_tokens` positions without a causal mask. The queries of a step see the keys of the step's own tokens
// (the last `count` of each row) in the same chunk; a step's end splits a chunk into pieces. Word `channel` of each of these tokens becomes
// (as float bits) the attention it receives: the sum over the queries of the piece of softmax(q.k), with 1/sqrt(d) where `scaled`; mean
// over the group. `padded`: a piece shorter than a chunk is filled up with zero keys and zero queries that take part. Compactor, Chari and
// Van Durme 2025.
struct ChunkAttention {
  KvRows kv;
  const Queries* queries = nullptr;  // [num_sequences]
  std::int32_t chunk_tokens = 256;
  bool scaled = false, padded = false;
  std::int32_t channel = 0;
};
OpCall call(const ChunkAttention&);
void run_cpu(const ChunkAttention&);
void run_cuda(const ChunkAttention&, CudaContext&);

}  // namespace kvlab
