#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// The probabilities that each token received from the last queries that attended to it, kept in words of the cache: `ring` values
// in channels [first_word, first_word + ring), the number of values so far in the next channel.
namespace kvlab {

// Pushes, for each of the last `ring` queries of a sequence, the softmax over the listed tokens that it sees (all of the row without
// lists), averaged over the row's query heads. Other tokens keep their values.
struct PushAttention {
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()]
  bool lists_tokens = false;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows + 1]
  const std::int32_t* index = nullptr;
  std::int32_t first_word = 0, ring = 0;
  [[nodiscard]] std::int64_t tokens(std::int32_t row) const { return lists_tokens ? index_first[row + 1] - index_first[row] : kv.len[row]; }
};
// Keys of the listed tokens are read once, words written; 2 FLOPs per channel and 3 for the softmax per query head, query and token.
OpCall call(const PushAttention&);
void run_cpu(const PushAttention&);
void run_cuda(const PushAttention&, CudaContext&);

}  // namespace kvlab
