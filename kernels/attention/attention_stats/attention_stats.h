#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Attention probabilities per token, fp32: p_t^h[i] = softmax of q.k_i / sqrt(d) over positions up to the query's. p_t[i] is their mean,
// max or sum over h; then
//   sum    += sum_t w_t p_t[i]        (w_t = 1, or the number of tokens visible to t: FINCH)
//   sum_sq += sum_t p_t[i]^2          max = max(max, max_t p_t[i])
// Outputs [kv.total()] are updated, for prompts in chunks.
struct AttentionStats {
  enum class Group : std::uint8_t { kMean, kMax, kSum };
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()]
  Group group = Group::kMean;
  bool weigh_by_visible = false;
  std::int32_t visible_offset = 0;
  bool wants_sum = true, wants_sum_sq = false, wants_max = false;  // flags: pointers are null on shapes
  float* sum = nullptr;
  float* sum_sq = nullptr;
  float* max = nullptr;
};

OpCall call(const AttentionStats&);
void run_cpu(const AttentionStats&);
// CPU memory: queries, but not their data (float32). Tensor cores if K is f16 or bf16, page_tokens % 16 == 0 and head_dim is 64, 128 or
// 256; queries are then within 2^-17 (bf16) of float32.
void run_cuda(const AttentionStats&, CudaContext&);

}  // namespace kvlab
