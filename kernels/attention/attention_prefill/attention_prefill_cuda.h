#pragma once

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

// FlashAttention-2 (Dao 2023) on tensor cores. Pages as in PagedKv (row = prompt * kv_heads + KV head), with the new tokens last. Query t
// sees tokens 0 .. kv_before[r] + t. Sums in fp32; probabilities are rounded to `type`.
struct DevicePrefill {
  const void* q = nullptr;                    // [tokens, q_heads, head_dim], tokens q_stride elements apart
  const void* k = nullptr;                    // [pages, page_tokens, head_dim]
  const void* v = nullptr;                    // as k
  void* out = nullptr;                        // [tokens, q_heads, head_dim]
  float* log_sum = nullptr;                   // [tokens, q_heads], natural logarithm; may be null
  const std::int32_t* query_first = nullptr;  // [prompts + 1]
  const std::int32_t* kv_before = nullptr;    // [prompts * kv_heads] cached tokens
  const std::int32_t* page_begin = nullptr;   // [prompts * kv_heads]
  const std::int32_t* page = nullptr;
  std::int32_t prompts = 0;
  std::int32_t tokens = 0;                               // query_first[prompts]
  std::int32_t longest_kv = 0;                           // upper bound of kv_before + new tokens; 0: unknown, no splits
  std::int32_t q_heads = 0, kv_heads = 0, head_dim = 0;  // 1 to 16 query heads per KV head; head_dim 64, 128 or 256
  std::int32_t page_tokens = 16;                         // a multiple of 16
  std::int64_t q_stride = 0;                             // 0: q_heads * head_dim
  std::int32_t window = 0;                               // visible tokens; 0: all
  // false: queries see only cached tokens; their own keys are not cached.
  bool causal = true;
  float scale = 1.0F;                     // above 0
  ElementType type = ElementType::kBf16;  // f16, or bf16 from compute capability 8.0
  int tuning = -1;                        // index into prefill_variants(head_dim); -1: automatic
  std::int32_t splits = 0;                // parts of the keys; 0: splits_of()
  // Unmerged [splits, tokens, q_heads, head_dim], log_sum [splits, tokens, q_heads]; null: out.
  float* parts = nullptr;
};

struct PrefillVariant {
  std::int32_t head_dim, row_tiles, warps, keys;  // `keys` per step of 16 * row_tiles * warps query heads of queries
  [[nodiscard]] constexpr std::int32_t rows() const { return 16 * row_tiles * warps; }
  [[nodiscard]] constexpr std::int64_t shared_bytes() const { return 2LL * head_dim * (rows() + 4 * keys); }
};
std::vector<PrefillVariant> prefill_variants(std::int32_t head_dim);

// Fills the GPU; needs longest_kv.
std::int32_t splits_of(const DevicePrefill& a, const GpuInfo& gpu);

// For one prompt.
constexpr AttentionPrefillShape shape(const DevicePrefill& a, std::int64_t new_tokens, std::int64_t kv_before) {
  const std::int64_t bytes = element_bytes(a.type);
  return {new_tokens, kv_before, a.q_heads, a.kv_heads, a.head_dim, bytes, bytes, a.window};
}
// Throws CudaError for unsupported shapes and types.
void check(const DevicePrefill& a, const GpuInfo& gpu);
void run_cuda(const DevicePrefill& a, CudaContext& cuda);

}  // namespace kvlab
