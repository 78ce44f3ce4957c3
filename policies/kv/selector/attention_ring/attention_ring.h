#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// Probabilities that each token received from its last queries, in words of the cache: `ring` values in channels [first_word, first_word +
// ring), then their count.
namespace kvlab {

// Pushes, per query of the last `ring` of a sequence, the softmax over the listed tokens that it sees (all without lists), mean over the
// row's query heads. Other tokens keep their values.
struct PushAttention {
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()]
  bool lists_tokens = false;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows + 1]
  const std::int32_t* index = nullptr;
  std::int32_t first_word = 0, ring = 0;
  [[nodiscard]] std::int64_t tokens(std::int32_t row) const { return lists_tokens ? index_first[row + 1] - index_first[row] : kv.len[row]; }
};
OpCall call(const PushAttention&);
void run_cpu(const PushAttention&);
void run_cuda(const PushAttention&, CudaContext&);

}  // namespace kvlab
