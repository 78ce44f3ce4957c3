#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Attention of a prompt's chunk among chosen tokens: out = softmax(scale q k^T) v in float32, where a chosen query sees the chosen keys
// that are not after it, or among its last `window` positions. Queries that are not chosen get zeros. Lists are of KV heads, or one for all
// of them. Chosen of a list are the positions [0, head), base + index[j] and [tail, kv_before + new_tokens).
struct ChosenPrefill {
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  const float* v = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  float* out = nullptr;      // [new_tokens, q_heads, head_dim]
  float* log_sum = nullptr;  // [new_tokens, q_heads] natural logarithm of the softmax's denominator; may be null
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;              // 0: none
  std::int64_t num_lists = 1;           // 1 or kv_heads
  const std::int64_t* first = nullptr;  // [num_lists + 1] in CPU memory
  const std::int32_t* index = nullptr;  // [first[num_lists]] ascending in a list
  std::int32_t base = 0, head = 0;
  std::int64_t tail = 0;
  const std::int32_t* queries = nullptr;            // [num_lists] chosen ones of the chunk, in CPU memory
  std::int64_t activation_bytes = 4, kv_bytes = 4;  // of one element, in call()

  [[nodiscard]] std::int64_t end() const { return kv_before + new_tokens; }
  [[nodiscard]] std::int64_t keys(std::int64_t list) const { return head + first[list + 1] - first[list] + end() - tail; }
};

// Query-key pairs of all query heads; windows are not counted.
std::int64_t chosen_pairs(const ChosenPrefill&);
// FLOPs are 4 head_dim per pair. Chosen K and V are read once per KV head, chosen queries read and all outputs written once.
OpCall call(const ChosenPrefill&);
void run_cpu(const ChosenPrefill&);

}  // namespace kvlab
