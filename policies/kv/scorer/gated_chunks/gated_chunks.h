#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// One set of tokens for all KV heads of a sequence, chunk by chunk, by scores summed over the heads. Chunks are taken in the order of their
// mean scores until `budget` tokens are kept. They are kept whole, except that a chunk whose mean is at least the median and whose entropy
// is below the median of entropies only keeps its best `peaked_tokens`. The entropy is that of a chunk's scores as shares, over the
// logarithm of their number. The rest of the budget goes to the best of the other tokens. Scores of dropped tokens become -infinity. All
// rows of a sequence have one length. CPU only: equal scores fall as torch.topk leaves them on a CPU.
struct GatedChunks {
  KvRows kv;
  std::int32_t chunk_tokens = 10, peaked_tokens = 4;
  const std::int32_t* budget = nullptr;  // [kv.num_rows] alike for the rows of a sequence
  float* scores = nullptr;               // [kv.total()]
};
OpCall call(const GatedChunks&);
void run_cpu(const GatedChunks&);

}  // namespace kvlab
