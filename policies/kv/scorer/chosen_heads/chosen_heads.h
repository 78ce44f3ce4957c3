#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Attention of a window of queries from a few query heads, used for all KV heads of the sequence: scores[i] = mean over the chosen heads h
// of sum_t p_t^h[i], softmax in fp32 over the tokens that the head's KV head holds. The heads are `heads`, or the `num_heads` whose window
// pays most to tokens that are neither among the first `sinks` nor the last `recent` of the row (ties: lower head). Token i must be the
// same token in every KV head of a sequence: rows of different length are an InternalError.
struct ChosenHeads {
  KvRows kv;
  const Queries* queries = nullptr;     // [kv.num_sequences()]
  const std::int32_t* heads = nullptr;  // [num_heads] query heads; null: found from the attention
  std::int32_t num_heads = 1;
  bool finds_heads = true;  // a flag, because with shapes alone `heads` is null
  std::int32_t sinks = 0, recent = 0;
  float* scores = nullptr;  // [kv.total()] out
};
// Throws where rows of a sequence differ in length.
void check_heads(const ChosenHeads&);
// Products of the chosen heads, or of all heads if they are found first; K is read for min(kv_heads, that number) KV heads.
OpCall call(const ChosenHeads&);
void run_cpu(const ChosenHeads&);
void run_cuda(const ChosenHeads&, CudaContext&);

}  // namespace kvlab
