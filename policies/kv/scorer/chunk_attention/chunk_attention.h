#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Attention inside chunks of `chunk_tokens` positions without a causal mask. A step's queries see the step's own tokens (the last `count`
// of each row) in the same chunk; a step's end splits a chunk into pieces. Word `channel` of these tokens becomes (as float bits) the sum
// over the piece's queries of softmax(q.k), with 1/sqrt(d) if `scaled`; mean over the group. `padded`: shorter pieces are filled with zero
// keys and queries that take part.
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
