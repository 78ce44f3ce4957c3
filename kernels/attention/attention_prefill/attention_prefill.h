#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

struct AttentionPrefillShape {
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // per element
  std::int64_t window = 0;                          // in tokens; 0: none
};

// Query i (from 1) sees kv_before + i tokens, at most `window`.
constexpr std::int64_t attended_pairs(const AttentionPrefillShape& s) {
  const std::int64_t n = s.new_tokens;
  if (s.window == 0) return n * s.kv_before + n * (n + 1) / 2;
  const std::int64_t growing = std::clamp<std::int64_t>(s.window - s.kv_before, 0, n);  // queries that see everything
  return growing * s.kv_before + growing * (growing + 1) / 2 + (n - growing) * s.window;
}
// K and V are read once: rereads hit L2.
constexpr std::int64_t bytes(const AttentionPrefillShape& s) {
  const std::int64_t before = s.window == 0 ? s.kv_before : std::min(s.kv_before, s.window);
  const std::int64_t kv = s.new_tokens == 0 ? 0 : before + s.new_tokens;
  return 2 * kv * s.kv_heads * s.head_dim * s.kv_bytes + 2 * s.new_tokens * s.q_heads * s.head_dim * s.activation_bytes;
}
constexpr std::int64_t flops(const AttentionPrefillShape& s) { return 4 * attended_pairs(s) * s.q_heads * s.head_dim; }

// softmax(scale q k^T) v in float32; query i sees keys 0 .. kv_before + i, or their last `window`. Query heads from g * q_heads / kv_heads
// on share KV head g. Online softmax, as FlashAttention (Dao et al. 2022).
struct AttentionPrefill {
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  const float* v = nullptr;  // as k
  float* out = nullptr;      // as q
  float* scratch = nullptr;  // [scratch_floats(*this)]
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0F;       // 1 / sqrt(head_dim)
  std::int64_t window = 0;  // visible keys; 0: all
};

constexpr AttentionPrefillShape shape(const AttentionPrefill& a) {
  return {a.new_tokens, a.kv_before, a.q_heads, a.kv_heads, a.head_dim, 4, 4, a.window};
}
std::int64_t scratch_floats(const AttentionPrefill& a);
void run_cpu(const AttentionPrefill& a);

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

// Attention that cached tokens received: p_t^h[i] from the prefill's log_sum, over the last `last` queries (SnapKV) or all (H2O). For KV
// head row r with n tokens and token i
//   scores[first[r] + i] = factor * sum over query heads h of the group and queries t of p_t^h[i]
//   by_head: scores[first[r] * group + h * n + i] = factor * sum over queries t of p_t^h[i]
struct DevicePrefillScores {
  DevicePrefill prefill;                // needs longest_kv and causal
  std::int32_t last = 0;                // 0: all
  const std::int64_t* first = nullptr;  // [prompts * kv_heads] prefix sums of row lengths
  float* scores = nullptr;
  bool by_head = false;
  bool adds = false;  // for further chunks of a prompt; false: overwrites
  float factor = 1.0F;
};

// For one prompt.
constexpr std::int64_t bytes(const DevicePrefillScores& a, std::int64_t new_tokens, std::int64_t kv_before) {
  const std::int64_t queries = a.last > 0 && a.last < new_tokens ? a.last : new_tokens, keys = kv_before + new_tokens;
  const std::int64_t per_key =
      a.prefill.head_dim * element_bytes(a.prefill.type) + 4 * (a.by_head ? a.prefill.q_heads / a.prefill.kv_heads : 1);
  return keys * a.prefill.kv_heads * per_key + queries * a.prefill.q_heads * (a.prefill.head_dim * element_bytes(a.prefill.type) + 4);
}
constexpr std::int64_t flops(const DevicePrefillScores& a, std::int64_t new_tokens, std::int64_t kv_before) {
  const std::int64_t queries = a.last > 0 && a.last < new_tokens ? a.last : new_tokens;
  const AttentionPrefillShape s = shape(a.prefill, queries, kv_before + new_tokens - queries);
  return attended_pairs(s) * s.q_heads * (2 * s.head_dim + 2);
}
void run_cuda(const DevicePrefillScores& a, CudaContext& cuda);

}  // namespace kvlab
