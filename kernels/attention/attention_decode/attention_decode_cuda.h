#pragma once

#include <span>

#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"
#include "kernels/ops.h"
#include "kernels/paged_kv.h"

namespace kvlab {

// One query token per sequence against its paged keys and values (layout: PagedKv), for 1 to 16 query heads per KV head and head_dim 64,
// 128 or 256, for f16 and bf16 also 96. All pointers are device memory. Sums and softmax in fp32. Formats of 8 bits and less are multiplied
// in fp16 on tensor cores: |q| and, decoded, |k| and |v| must stay below 65,504, and with kivi |q| times a scale of K too.
struct PagedDecode {
  PagedKv kv;                // kv.type is q's
  const void* q = nullptr;   // [sequences, q_heads, head_dim]
  void* out = nullptr;       // [sequences, q_heads, head_dim] of out_type; zeros for rows without tokens
  float* log_sum = nullptr;  // [sequences, q_heads] natural log of the softmax denominator; -infinity without tokens; may be null
  const std::int64_t* first = nullptr;  // [num_rows + 1] prefix sums of kv.len; needed only for the next two
  float* column_sum = nullptr;     // [first[num_rows]] probability of each cached token, summed over the KV head's query heads; may be null
  float* probabilities = nullptr;  // row r at group * first[r]: [group, len]; may be null
  std::int32_t* counters = nullptr;           // [num_rows] zeros, reset to zeros at the end: saves a fill when rows are split; may be null
  std::int32_t q_heads = 0;                   // kv.kv_heads * group
  std::int32_t longest = 0;                   // longest row, or an upper bound
  std::int64_t kv_tokens = 0;                 // sum of kv.len over the rows; without probabilities an estimate is enough
  float scale = 0;                            // of q.k; 0: 1 / sqrt(head_dim)
  ElementType out_type = ElementType::kBf16;  // kv.type, or kF32 for parts that DeviceMergePartials merges
  int tuning = -1;                            // index into decode_tunings(); -1: chosen by batch and GPU
  int splits = 0;  // blocks that the longest row is shared between; 0: chosen so that the GPU is full and the tail short
};

// A way to run the kernel: blocks of `warps` warps, each with `stages` units of tokens in shared memory, or in registers with stages 0;
// compiled so that registers let `blocks` blocks share a multiprocessor.
struct DecodeTuning {
  int warps, stages, blocks;
};
std::span<const DecodeTuning> decode_tunings(KvFormat format, std::int32_t head_dim);

// The launch parameters that run_cuda() chooses.
struct DecodePlan {
  int tuning = 0;
  std::int32_t chunk_tokens = 0;  // of a row per block
  std::int32_t splits = 1;        // blocks of the longest row
  std::int64_t shared_bytes = 0;  // per block
};
DecodePlan plan_of(const PagedDecode& a, const GpuInfo& gpu);

AttentionDecodeShape shape(const PagedDecode& a);
// Stored bytes of K and V with scales, windows and page table, queries, results and, if requested, probabilities. Exact if rows are equally
// long (a window's length depends on its row's).
std::int64_t bytes(const PagedDecode& a);
std::int64_t flops(const PagedDecode& a);
OpCall call(const PagedDecode& a);
void run_cuda(const PagedDecode& a, CudaContext& cuda);

}  // namespace kvlab
