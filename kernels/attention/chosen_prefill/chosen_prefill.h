#pragma once

#include <cstdint>

#include "kernels/element.h"
#include "kernels/ops.h"

namespace kvlab {

// out = softmax(scale q k^T) v in float32: a chosen query sees chosen keys up to its own, or of its last `window` positions; other queries
// get zeros. A list, per KV head or for all, chooses [0, head), base + index[j] and [tail, end()).
struct ChosenPrefill {
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  const float* v = nullptr;  // as k
  float* out = nullptr;      // as q
  float* log_sum = nullptr;  // [new_tokens, q_heads], natural logarithm; may be null
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;              // 0: none
  std::int64_t num_lists = 1;           // 1 or kv_heads
  const std::int64_t* first = nullptr;  // [num_lists + 1] in CPU memory
  const std::int32_t* index = nullptr;  // [first[num_lists]] ascending in a list
  std::int32_t base = 0, head = 0;
  std::int64_t tail = 0;
  const std::int32_t* queries = nullptr;            // [num_lists] counts, in CPU memory
  std::int64_t activation_bytes = 4, kv_bytes = 4;  // per element, in call()

  [[nodiscard]] KVLAB_BOTH std::int64_t end() const { return kv_before + new_tokens; }
  [[nodiscard]] KVLAB_BOTH std::int64_t keys(std::int64_t list) const { return head + first[list + 1] - first[list] + end() - tail; }
};

// Over all query heads, without windows.
std::int64_t chosen_pairs(const ChosenPrefill&);
OpCall call(const ChosenPrefill&);
void run_cpu(const ChosenPrefill&);
void run_cuda(const ChosenPrefill&, CudaContext&);  // head_dim <= 256

}  // namespace kvlab
