#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Part of the tokens that a step attends to: `index[index_first[r] .. index_first[r + 1])` of row r (ascending), or the whole row if index
// is null. log_weight[r] is added to every logit of the row's segment (log m for a compensation token that replaces m dropped ones); null:
// 0.
struct Segment {
  KvRows kv;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows + 1]
  const std::int32_t* index = nullptr;
  const float* log_weight = nullptr;       // [kv.num_rows] known without data
  const float* head_log_weight = nullptr;  // [kv.num_rows * kv.group] the same for each query head, added to log_weight; null: 0
  // [tokens of all rows * kv.group] added to the logit of each token and query head, -infinity: the head does not see the token. A row's
  // numbers begin at token index_first[r], those of whole rows at kv.first[r]. Null: 0. With it weighs_tokens is true, on shapes too.
  const float* token_log_weight = nullptr;
  bool weighs_tokens = false;
  // Above 0: each query has weights of its own, [weighed_queries, tokens of the row, kv.group] for each row, of which the first ones belong
  // to the row's queries; it is at least their number. CPU only.
  std::int32_t weighed_queries = 0;
  std::int64_t read_bytes = -1;  // K and V bytes read in their stored format; -1: tokens * 2 * head_dim * kv_bytes

  [[nodiscard]] std::int64_t tokens(std::int32_t row) const {
    return index_first != nullptr ? index_first[row + 1] - index_first[row] : kv.len[row];
  }
  // The row's first token among those of all rows.
  [[nodiscard]] std::int64_t begin(std::int32_t row) const { return index_first != nullptr ? index_first[row] : kv.first[row]; }
};

// Exact attention of each query over the union of its segments, merged by log-sum-exp (accumulated in fp32):
// out[t, h] = sum_i p_i v_i with p = softmax over the visible tokens of all segments of q.k_i / sqrt(d) + log_weight.
// A token is visible when its position does not exceed the query's and, with a window, is among the `window` last ones up to it. A query
// that sees nothing gets zeros.
struct Attend {
  const Segment* segments = nullptr;  // [num_segments], all with the same rows
  std::int32_t num_segments = 0;
  const Queries* queries = nullptr;  // [num_sequences]
  float* const* out = nullptr;       // [num_sequences] -> [count, q_heads, head_dim]
  float* const* log_sum = nullptr;   // [num_sequences] -> [count, q_heads] log of the softmax denominator; may be null
  // For diagnosis, may be null: [num_rows] -> [count * group, tokens of the row over all segments] probabilities.
  float* const* probabilities = nullptr;
  std::int32_t window = 0;  // visible: position > query position - window; 0: no window
};
// 2 multiply-adds per channel, query head and token attended to; K and V are read once per row, q and out once.
OpCall call(const Attend&);
void run_cpu(const Attend&);
// Arrays of structs and of pointers, index_first and log_weight are in CPU memory; index, head_log_weight, token_log_weight, queries
// (float32), out, log_sum and probabilities are in device memory. Segments may differ in type and page_tokens. head_dim is at most 256.
// Throws CudaError for segments with weights per query.
// Runs without tensor cores, because positions, types and lists are general: prefer PagedDecode and DevicePrefill where they apply.
void run_cuda(const Attend&, CudaContext&);

}  // namespace kvlab
