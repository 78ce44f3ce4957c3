#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Attention probabilities of given queries over the tokens a row holds, reduced per token. For query t and query head h of
// the row's group: p_t^h[i] = softmax over visible i of q.k_i / sqrt(d) (a token is visible when its position does not
// exceed the query's), in fp32. First the group is reduced to p_t[i] (mean, max or sum over h), then the queries:
//   sum    += sum_t w_t p_t[i]        (w_t = 1, or the number of tokens visible to t: FINCH)
//   sum_sq += sum_t p_t[i]^2          max = max(max, max_t p_t[i])
// Updates the wanted outputs, [kv.total()], on top of their contents, so that a prompt can come in chunks.
struct AttentionStats {
  enum class Group : std::uint8_t { kMean, kMax, kSum };
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()]
  Group group = Group::kMean;
  bool weigh_by_visible = false;
  std::int32_t visible_offset = 0;                                 // added to the number of visible tokens if that is the weight
  bool wants_sum = true, wants_sum_sq = false, wants_max = false;  // flags, because with shapes alone the pointers are null
  float* sum = nullptr;
  float* sum_sq = nullptr;
  float* max = nullptr;
};

// Two products per query head, query and visible token (q.k, and the reductions count as one more multiply-add per group
// member); K is read once per block of queries that fits the cache, at least once.
OpCall call(const AttentionStats&);
void run_cpu(const AttentionStats&);
// queries is a CPU array; their data (float32) and the outputs are in device memory. Uses tensor cores if K is f16 or bf16, pages hold a
// multiple of 16 tokens and head_dim is 64, 128 or 256; queries then are sums of two numbers of K's type, within 2^-17 (bf16) of float32.
void run_cuda(const AttentionStats&, CudaContext&);

}  // namespace kvlab
