#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// scores[i] = mean over the chosen query heads h of sum_t p_t^h[i], for all KV heads; softmax in fp32 over the tokens of the head's KV
// head. The heads are `heads`, or the `num_heads` that pay most to tokens after the first `sinks` and before the last `recent` (ties: lower
// head). Rows of a sequence hold the same tokens, else InternalError.
struct ChosenHeads {
  KvRows kv;
  const Queries* queries = nullptr;     // [kv.num_sequences()]
  const std::int32_t* heads = nullptr;  // [num_heads]; null: found from the attention
  std::int32_t num_heads = 1;
  bool finds_heads = true;  // a flag: on shapes `heads` is null
  std::int32_t sinks = 0, recent = 0;
  float* scores = nullptr;  // [kv.total()] out
};
void check_heads(const ChosenHeads&);
// Products of the chosen heads, or of all heads if they are found first; K is read for min(kv_heads, that number) KV heads.
OpCall call(const ChosenHeads&);
void run_cpu(const ChosenHeads&);
void run_cuda(const ChosenHeads&, CudaContext&);

}  // namespace kvlab
