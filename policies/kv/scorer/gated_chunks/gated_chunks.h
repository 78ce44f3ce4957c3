#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// One set for all KV heads of a sequence, by scores summed over the heads. Chunks are taken by mean score until `budget` tokens are kept;
// whole, but a chunk with a mean >= the median and an entropy < the median keeps only its best `peaked_tokens`. Entropy: of the chunk's
// scores as shares, over the logarithm of their number. The rest of the budget goes to the best other tokens; dropped tokens get -infinity.
// All rows of a sequence have one length. CPU only: ties as torch.topk on a CPU.
struct GatedChunks {
  KvRows kv;
  std::int32_t chunk_tokens = 10, peaked_tokens = 4;
  const std::int32_t* budget = nullptr;  // [kv.num_rows] equal in a sequence
  float* scores = nullptr;               // [kv.total()]
};
OpCall call(const GatedChunks&);
void run_cpu(const GatedChunks&);

}  // namespace kvlab
