#pragma once

#include <cstdint>

#include "base/ceil_div.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"
#include "kernels/element.h"

namespace kvlab {

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
