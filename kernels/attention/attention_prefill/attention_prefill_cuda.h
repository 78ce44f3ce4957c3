#pragma once

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

// Queries of several prompts against paged keys and values, all in device memory: FlashAttention-2 (Dao 2023) on tensor cores.
// Row r = prompt * kv_heads + KV head has its own pages and its own number of cached tokens: its token i is in slot i % page_tokens of page
// page[page_begin[r] + i / page_tokens]. The prompt's new tokens are the last ones of the row: their keys and values are in the cache
// already. Query t of the prompt sees the row's tokens 0 .. kv_before[r] + t.
//   out[t, h] = sum_i p_i v_i,  p = softmax over visible i of scale q.k_i
// Sums are in fp32; probabilities are rounded to `type` for the product with V.
struct DevicePrefill {
  const void* q = nullptr;                    // [tokens, q_heads, head_dim], tokens q_stride elements apart
  const void* k = nullptr;                    // [pages, page_tokens, head_dim]
  const void* v = nullptr;                    // [pages, page_tokens, head_dim]
  void* out = nullptr;                        // [tokens, q_heads, head_dim]
  float* log_sum = nullptr;                   // [tokens, q_heads] natural logarithm of the softmax's denominator; may be null
  const std::int32_t* query_first = nullptr;  // [prompts + 1] where a prompt's tokens start in q
  const std::int32_t* kv_before = nullptr;    // [prompts * kv_heads] tokens before the new ones
  const std::int32_t* page_begin = nullptr;   // [prompts * kv_heads]
  const std::int32_t* page = nullptr;
  std::int32_t prompts = 0;
  std::int32_t tokens = 0;      // query_first[prompts]
  std::int32_t longest_kv = 0;  // a bound of kv_before + new tokens; 0: unknown, then few queries on long rows are not split over keys
  std::int32_t q_heads = 0, kv_heads = 0, head_dim = 0;  // 1 to 16 query heads per KV head; head_dim 64, 128 or 256
  std::int32_t page_tokens = 16;                         // a multiple of 16
  std::int64_t q_stride = 0;                             // 0: q_heads * head_dim
  std::int32_t window = 0;                               // a query sees only its last `window` tokens, itself included; 0: all
  // false: all queries see only the kv_before cached tokens; the queries' own keys are not in the cache.
  bool causal = true;
  float scale = 1.0F;                     // above 0
  ElementType type = ElementType::kBf16;  // of q, k, v and out: f16, or bf16 from compute capability 8.0 on
  int tuning = -1;                        // index into prefill_variants(head_dim); -1: chosen by shape
  std::int32_t splits = 0;                // parts that keys are split into; 0: splits_of()
  // Receives the unmerged parts in place of out: [splits, tokens, q_heads, head_dim]; log_sum then is [splits, tokens, q_heads] and
  // DeviceMergePartials merges them. Null: out.
  float* parts = nullptr;
};

// Tiles that the kernel is compiled for.
struct PrefillVariant {
  std::int32_t head_dim, row_tiles, warps, keys;  // a block takes 16 * row_tiles * warps rows (query heads of queries) and `keys` at a time
  [[nodiscard]] constexpr std::int32_t rows() const { return 16 * row_tiles * warps; }
  [[nodiscard]] constexpr std::int64_t shared_bytes() const { return 2LL * head_dim * (rows() + 4 * keys); }
};
std::vector<PrefillVariant> prefill_variants(std::int32_t head_dim);

// Number of parts that fill the GPU, if longest_kv is known.
std::int32_t splits_of(const DevicePrefill& a, const GpuInfo& gpu);

// Shape of one of the batch's prompts; the batch costs their sum.
constexpr AttentionPrefillShape shape(const DevicePrefill& a, std::int64_t new_tokens, std::int64_t kv_before) {
  const std::int64_t bytes = element_bytes(a.type);
  return {new_tokens, kv_before, a.q_heads, a.kv_heads, a.head_dim, bytes, bytes, a.window};
}
// Throws CudaError for shapes and types that the kernels do not take.
void check(const DevicePrefill& a, const GpuInfo& gpu);
void run_cuda(const DevicePrefill& a, CudaContext& cuda);

}  // namespace kvlab
