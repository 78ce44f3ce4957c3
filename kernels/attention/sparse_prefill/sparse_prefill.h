#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"

namespace kvlab {

// Keys that queries see, listed per query head and query block. Block i, of queries and of keys, holds positions [i * block, (i + 1) *
// block) of the prompt. A chunk's first query block is the one that holds position kv_before, of which it may have a part only; so is its
// last one. List number h * query_blocks + b is that of query head h and the chunk's query block b.
struct SparseKeys {
  std::int32_t block = 64;
  const std::int64_t* block_first = nullptr;   // [q_heads * query_blocks + 1] where a list begins in blocks
  const std::int32_t* blocks = nullptr;        // key blocks, ascending in a list
  const std::int64_t* column_first = nullptr;  // [q_heads * query_blocks + 1] or null: no columns
  const std::int32_t* columns = nullptr;       // key positions outside of the list's blocks, ascending in a list
};

// Query blocks that a chunk has a part of.
constexpr std::int64_t query_blocks(std::int64_t new_tokens, std::int64_t kv_before, std::int32_t block) {
  return new_tokens == 0 ? 0 : (kv_before + new_tokens - 1) / block - kv_before / block + 1;
}

// Block-sparse attention of a prompt's queries: out = softmax(scale q k^T) v in float32, where query i sees those listed keys that are at
// positions 0 .. kv_before + i, or among the last `window` of these. MInference (Jiang et al. 2024) lists the blocks of a diagonal band and
// single columns, or blocks alone; lists of all blocks are AttentionPrefill. Online softmax over tiles of listed keys, as in FlashAttention
// (Dao et al. 2022). A query that sees nothing gets zeros and log_sum -infinity.
struct SparsePrefill {
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  const float* v = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  float* out = nullptr;      // [new_tokens, q_heads, head_dim]
  float* log_sum = nullptr;  // [new_tokens, q_heads] natural logarithm of the softmax's denominator; may be null
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0F;       // 1 / sqrt(head_dim)
  std::int64_t window = 0;  // a query sees only its last `window` keys, its own included; 0: all
  SparseKeys keys;
  std::int64_t activation_bytes = 4, kv_bytes = 4;  // of one element, in call()
};

constexpr std::int64_t query_blocks(const SparsePrefill& a) { return query_blocks(a.new_tokens, a.kv_before, a.keys.block); }

// List number `list`. Needs data.
inline std::span<const std::int32_t> listed_blocks(const SparseKeys& k, std::int64_t list) {
  return {k.blocks + k.block_first[list], k.blocks + k.block_first[list + 1]};
}
inline std::span<const std::int32_t> listed_columns(const SparseKeys& k, std::int64_t list) {
  if (k.column_first == nullptr) return {};
  return {k.columns + k.column_first[list], k.columns + k.column_first[list + 1]};
}

// Counted from the lists' lengths, as if each list that is not empty ended with the query block's own block and all other listed keys were
// visible: exact for such lists without a window. `tokens` are keys that query blocks read, once per query head. FLOPs are 4 head_dim per
// query-key pair. Bytes: memory is read once per KV head and listed token at most, further reads are served by caches, as in
// AttentionPrefill.
OpCall call(const SparsePrefill&);
void run_cpu(const SparsePrefill&);
// block_first and column_first are in CPU memory, blocks, columns and all else in device memory. Rounds q, k and v to the 16-bit type of
// the kernel; models on a GPU use DeviceSparsePrefill.
void run_cuda(const SparsePrefill&, CudaContext&);

}  // namespace kvlab
