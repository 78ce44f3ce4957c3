#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"
#include "kernels/select/unit_lists.h"

// SparQ, Ribar et al. 2024, arXiv:2312.04985, algorithm 1; inside the storage device by InstInfer, Pan et al. 2024, arXiv:2409.04992.
namespace kvlab {

// Over the `channels` channels of largest sum_h |q_h| in the row's query heads (ties to the lower one): p_h[i] = softmax_i(q_h . k_i /
// sqrt(d |q_h on the channels|_1 / |q_h|_1)) over all tokens of the row; mean over the heads.
struct SparqScores {
  KvRows kv;
  std::int32_t channels = 1;         // <= head_dim
  const Queries* queries = nullptr;  // [kv.num_sequences()], the last of each
  float* each = nullptr;             // [kv.group * kv.total()] out: row r, head h from group * first[r] + h * len[r] on
  float* scores = nullptr;           // [kv.total()] out: the mean
};
OpCall call(const SparqScores&);
void run_cpu(const SparqScores&);
void run_cuda(const SparqScores&, CudaContext&);

// Adds values of tokens [from[r], len[r]); from[r] = 0 starts from zero.
struct ValueSums {
  KvRows kv;
  const std::int32_t* from = nullptr;  // [kv.num_rows]
  float* const* sum = nullptr;         // [kv.num_rows] -> [head_dim]
};
OpCall call(const ValueSums&);
void run_cpu(const ValueSums&);
void run_cuda(const ValueSums&, CudaContext&);

// One token that replaces those not listed. Its value is the mean of all values. Its share for head h is 1 - alpha_h, alpha_h = sum of p_h
// over the listed tokens. Its key is 0; its logit is log sum exp of the listed tokens' logits + log((1 - alpha_h) / alpha_h).
struct SparqRest {
  KvRows kv;
  const Queries* queries = nullptr;
  UnitLists lists;                    // tokens
  const float* each = nullptr;        // of SparqScores
  const float* const* sum = nullptr;  // of ValueSums
  float *k = nullptr, *v = nullptr;   // [kv.num_rows, head_dim] out
  std::int32_t* position = nullptr;   // [kv.num_rows] out: 0, seen by every query
  float* log_weight = nullptr;        // [kv.num_rows * group] out
};
// Logits of the listed tokens are not counted: the attention that follows computes them.
OpCall call(const SparqRest&);
void run_cpu(const SparqRest&);
void run_cuda(const SparqRest&, CudaContext&);

// Distinct pages of `page_tokens` neighbouring tokens.
struct FlashPages {
  std::int32_t num_rows = 0, page_tokens = 1;
  UnitLists lists;
  std::int32_t* count = nullptr;  // [num_rows] in: upper bounds, out
};
// Costs nothing (diagnostic).
OpCall call(const FlashPages&);
void run_cpu(const FlashPages&);
void run_cuda(const FlashPages&, CudaContext&);  // `count` is in CPU memory; waits for the stream.

}  // namespace kvlab
