#pragma once

#include <cstdint>
#include <span>

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"
#include "kernels/ops.h"
#include "kernels/paged_kv.h"

namespace kvlab {

// One query token per row against its paged cache.
struct AttentionDecodeShape {
  std::int64_t rows = 0;
  std::int64_t kv_tokens = 0;  // attended tokens of all rows with their own
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // per element
};

constexpr std::int64_t bytes(const AttentionDecodeShape& s) {
  return 2 * s.kv_tokens * s.kv_heads * s.head_dim * s.kv_bytes + 2 * s.rows * s.q_heads * s.head_dim * s.activation_bytes;
}
constexpr std::int64_t flops(const AttentionDecodeShape& s) { return 4 * s.kv_tokens * s.q_heads * s.head_dim; }

// One query token per sequence: 1 to 16 query heads per KV head, head_dim 64, 128, 256, or 96 for f16 and bf16. fp32 sums. Below 16 bits
// products are in fp16: |q|, decoded |k|, |v| and, with kivi, |q| times K's scale must stay below 65,504.
struct PagedDecode {
  PagedKv kv;                                 // kv.type is q's
  const void* q = nullptr;                    // [sequences, q_heads, head_dim]
  void* out = nullptr;                        // as q, of out_type; zeros without tokens
  float* log_sum = nullptr;                   // [sequences, q_heads], natural logarithm; -infinity without tokens; may be null
  const std::int64_t* first = nullptr;        // [num_rows + 1] prefix sums of kv.len
  float* column_sum = nullptr;                // [first[num_rows]] sums over the group; may be null
  float* probabilities = nullptr;             // [group, len] at group * first[r]; may be null
  std::int32_t* counters = nullptr;           // [num_rows] zeros, also at the end; may be null
  std::int32_t q_heads = 0;                   // kv.kv_heads * group
  std::int32_t longest = 0;                   // upper bound
  std::int64_t kv_tokens = 0;                 // sum of kv.len; estimated without probabilities
  float scale = 0;                            // 0: 1 / sqrt(head_dim)
  ElementType out_type = ElementType::kBf16;  // kv.type, or kF32 for DeviceMergePartials
  int tuning = -1;                            // index into decode_tunings(); -1: automatic
  int splits = 0;                             // blocks of the longest row; 0: automatic
};

// `stages`: units per warp in shared memory (0: registers); `blocks` per multiprocessor.
struct DecodeTuning {
  int warps, stages, blocks;
};
std::span<const DecodeTuning> decode_tunings(KvFormat format, std::int32_t head_dim);

struct DecodePlan {
  int tuning = 0;
  std::int32_t chunk_tokens = 0;  // per block
  std::int32_t splits = 1;        // blocks of the longest row
  std::int64_t shared_bytes = 0;
};
DecodePlan plan_of(const PagedDecode& a, const GpuInfo& gpu);

AttentionDecodeShape shape(const PagedDecode& a);
// Exact for rows of equal length.
std::int64_t bytes(const PagedDecode& a);
std::int64_t flops(const PagedDecode& a);
void run_cuda(const PagedDecode& a, CudaContext& cuda);

}  // namespace kvlab
