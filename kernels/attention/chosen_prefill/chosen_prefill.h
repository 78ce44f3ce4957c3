#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/element.h"
#include "kernels/ops.h"

namespace kvlab {

// softmax(scale q k^T) v in float32 of chosen queries over chosen keys up to the query's own, or in its last `window` positions. A list,
// per KV head or for all, chooses the keys [0, head), base + index[j] and [tail, end()); default: all. The queries:
//   without stride  at the last queries[list] chosen keys; other queries get zeros and log_sum -infinity
//   with stride     every `stride`-th of the first corrected(), and the last rest(). Corrects sparse outputs S in `out`: dense outputs D
//     replace the last; for others D[r] - S[r] is added to rows r .. r + stride - 1. Delta Attention, Willette et al. 2025,
//     arXiv:2505.11254
struct ChosenPrefill {
  static constexpr std::int64_t kNone[2] = {0, 0};
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [kv_before + new_tokens, kv_heads, head_dim]
  const float* v = nullptr;  // as k
  float* out = nullptr;      // as q
  float* log_sum = nullptr;  // [new_tokens, q_heads], natural logarithm; may be null, and is with stride
  std::int64_t new_tokens = 0, kv_before = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;              // 0: none
  std::int64_t num_lists = 1;           // 1 or kv_heads
  const std::int64_t* first = kNone;    // [num_lists + 1] in CPU memory
  const std::int32_t* index = nullptr;  // [first[num_lists]] ascending in a list
  std::int32_t base = 0, head = 0;
  std::int64_t tail = 0;
  const std::int32_t* queries = nullptr;            // [num_lists] counts, in CPU memory
  std::int64_t stride = 0;                          // 0: none
  std::int64_t activation_bytes = 4, kv_bytes = 4;  // per element, in call()

  [[nodiscard]] KVLAB_BOTH std::int64_t end() const { return kv_before + new_tokens; }
  [[nodiscard]] KVLAB_BOTH std::int64_t keys(std::int64_t list) const { return head + first[list + 1] - first[list] + end() - tail; }
  // The strides before it are whole.
  [[nodiscard]] KVLAB_BOTH std::int64_t rest() const {
    return std::min(new_tokens, new_tokens % stride + std::max<std::int64_t>(128, stride));
  }
  [[nodiscard]] KVLAB_BOTH std::int64_t corrected() const { return new_tokens - rest(); }
  [[nodiscard]] KVLAB_BOTH std::int64_t strides() const { return (corrected() + stride - 1) / stride; }
  [[nodiscard]] KVLAB_BOTH std::int64_t num_queries(std::int64_t list) const { return stride == 0 ? queries[list] : strides() + rest(); }
  // Index in the list's keys of the last that query t sees.
  [[nodiscard]] KVLAB_BOTH std::int64_t last_key(std::int64_t list, std::int64_t t) const {
    if (stride == 0) return keys(list) - queries[list] + t;
    return kv_before + (t < strides() ? t * stride : corrected() + t - strides());
  }
  // The change of output `row` is added to the rows before this one; `row`: it is written.
  [[nodiscard]] KVLAB_BOTH std::int64_t corrects_to(std::int64_t row) const {
    return stride == 0 || row >= corrected() ? row : std::min(row + stride, corrected());
  }
};

// Over all query heads; without stride ignores the window.
std::int64_t chosen_pairs(const ChosenPrefill&);
OpCall call(const ChosenPrefill&);
void run_cpu(const ChosenPrefill&);
void run_cuda(const ChosenPrefill&, CudaContext&);  // head_dim <= 256

}  // namespace kvlab
