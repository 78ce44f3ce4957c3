#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// `index[index_first[r] .. index_first[r + 1])` of row r, ascending; null: all.
struct Segment {
  KvRows kv;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows + 1]
  const std::int32_t* index = nullptr;
  const float* log_weight =
      nullptr;  // [kv.num_rows] added to logits (log m if a token replaces m dropped ones), known without data; null: 0
  const float* head_log_weight = nullptr;  // [kv.num_rows * kv.group], added to log_weight; null: 0
  // [tokens of all rows * kv.group] added to logits, from begin(r) on; -infinity: hidden. Null: 0. Requires weighs_tokens.
  const float* token_log_weight = nullptr;
  bool weighs_tokens = false;
  // Above 0: weights [weighed_queries, tokens of the row, kv.group] per row, for all queries. CPU only.
  std::int32_t weighed_queries = 0;
  std::int64_t read_bytes = -1;  // -1: tokens * 2 * head_dim * kv_bytes

  [[nodiscard]] std::int64_t tokens(std::int32_t row) const {
    return index_first != nullptr ? index_first[row + 1] - index_first[row] : kv.len[row];
  }
  [[nodiscard]] std::int64_t begin(std::int32_t row) const { return index_first != nullptr ? index_first[row] : kv.first[row]; }
};

// Exact attention over all segments, fp32: softmax over visible tokens of q.k_i / sqrt(d) + log_weight. Zeros if a query sees nothing.
struct Attend {
  const Segment* segments = nullptr;  // [num_segments], equal rows
  std::int32_t num_segments = 0;
  const Queries* queries = nullptr;  // [num_sequences]
  float* const* out = nullptr;       // [num_sequences] -> [count, q_heads, head_dim]
  float* const* log_sum = nullptr;   // [num_sequences] -> [count, q_heads]; may be null
  // May be null: [num_rows] -> [count * group, all tokens].
  float* const* probabilities = nullptr;
  std::int32_t window = 0;  // query position - window < position <= query position; 0: no lower limit
};
OpCall call(const Attend&);
void run_cpu(const Attend&);
// CPU memory: structs, pointer arrays, index_first, log_weight. head_dim <= 256. Throws CudaError for weights per query.
void run_cuda(const Attend&, CudaContext&);

}  // namespace kvlab
