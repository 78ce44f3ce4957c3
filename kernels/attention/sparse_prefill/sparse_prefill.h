#pragma once

#include <cstdint>
#include <span>

#include "base/ceil_div.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/element.h"
#include "kernels/ops.h"

namespace kvlab {

// Block i: positions [i * block, (i + 1) * block); chunks may cut their first and last. List h * query_blocks + b: query head h, the
// chunk's query block b.
struct SparseKeys {
  std::int32_t block = 64;
  const std::int64_t* block_first = nullptr;   // [q_heads * query_blocks + 1]
  const std::int32_t* blocks = nullptr;        // ascending in a list
  const std::int64_t* column_first = nullptr;  // as block_first; null: no columns
  const std::int32_t* columns = nullptr;       // keys outside of these blocks, ascending
};

constexpr std::int64_t query_blocks(std::int64_t new_tokens, std::int64_t kv_before, std::int32_t block) {
  return new_tokens == 0 ? 0 : (kv_before + new_tokens - 1) / block - kv_before / block + 1;
}

// Block-sparse attention of a prompt, float32: query i sees listed keys at positions 0 .. kv_before + i, or the last `window`. MInference
// (Jiang et al. 2024); online softmax as FlashAttention (Dao et al. 2022). Queries that see nothing get zeros and log_sum -infinity.
struct SparsePrefill {
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  const float* v = nullptr;  // as k
  float* out = nullptr;      // as q
  float* log_sum = nullptr;  // [new_tokens, q_heads], natural logarithm; may be null
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0F;       // 1 / sqrt(head_dim)
  std::int64_t window = 0;  // visible keys; 0: all
  SparseKeys keys;
  std::int64_t activation_bytes = 4, kv_bytes = 4;  // per element, in call()
};

constexpr std::int64_t query_blocks(const SparsePrefill& a) { return query_blocks(a.new_tokens, a.kv_before, a.keys.block); }

// Needs data.
inline std::span<const std::int32_t> listed_blocks(const SparseKeys& k, std::int64_t list) {
  return {k.blocks + k.block_first[list], k.blocks + k.block_first[list + 1]};
}
inline std::span<const std::int32_t> listed_columns(const SparseKeys& k, std::int64_t list) {
  if (k.column_first == nullptr) return {};
  return {k.columns + k.column_first[list], k.columns + k.column_first[list + 1]};
}

// Exact without window if lists end with the own block. `tokens`: keys per query head and block.
OpCall call(const SparsePrefill&);
void run_cpu(const SparsePrefill&);
// block_first and column_first are in CPU memory. block % 16 == 0; head_dim 64, 128 or 256. Rounds to f16 (magnitudes below 65,504).
void run_cuda(const SparsePrefill&, CudaContext&);

// Several prompts over pages, on tensor cores. Lists [q_heads, query blocks] per prompt; a prompt's KV heads have equal kv_before.
struct DeviceSparsePrefill {
  DevicePrefill prefill;  // causal; tuning: index into sparse_prefill_variants(head_dim); no splits or parts
  SparseKeys keys;        // block % 16 == 0
};

// Rows: queries of one head and block.
std::vector<PrefillVariant> sparse_prefill_variants(std::int32_t head_dim);

// Throws CudaError for unsupported shapes and types.
void run_cuda(const DeviceSparsePrefill& a, CudaContext& cuda);

// Block i: positions [i * block, (i + 1) * block); the first query block holds position kv_before.
struct PromptBlocks {
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // per element, in call()
  std::int32_t block = 64;

  [[nodiscard]] KVLAB_BOTH std::int64_t end() const { return kv_before + new_tokens; }
  [[nodiscard]] KVLAB_BOTH std::int64_t group() const { return q_heads / kv_heads; }
  [[nodiscard]] KVLAB_BOTH std::int64_t num_query_blocks() const { return query_blocks(new_tokens, kv_before, block); }
  [[nodiscard]] KVLAB_BOTH std::int64_t first_block() const { return kv_before / block; }
  [[nodiscard]] KVLAB_BOTH std::int64_t num_key_blocks() const { return ceil_div(end(), std::int64_t{block}); }
  [[nodiscard]] KVLAB_BOTH std::int64_t num_lists() const { return q_heads * num_query_blocks(); }
  // 32-bit words: bit j % 32 of word j / 32 is key block j.
  [[nodiscard]] KVLAB_BOTH std::int64_t mark_words() const { return ceil_div(num_key_blocks(), std::int64_t{32}); }
  [[nodiscard]] KVLAB_BOTH std::int64_t column_words() const { return ceil_div(end(), std::int64_t{32}); }
  [[nodiscard]] KVLAB_BOTH const float* query(std::int64_t token, std::int64_t head) const {
    return q + (token * q_heads + head) * head_dim;
  }
  [[nodiscard]] KVLAB_BOTH const float* key(std::int64_t position, std::int64_t head) const {
    return k + (position * kv_heads + head / group()) * head_dim;
  }
  // Pairs with a key block that is not after the query block.
  [[nodiscard]] KVLAB_BOTH std::int64_t causal_blocks() const {
    const std::int64_t n = num_query_blocks();
    return n * first_block() + n * (n + 1) / 2;
  }
};

KVLAB_BOTH inline bool is_marked(const std::int32_t* words, std::int64_t i) {
  return ((static_cast<std::uint32_t>(words[i / 32]) >> (i % 32)) & 1U) != 0;
}

}  // namespace kvlab
