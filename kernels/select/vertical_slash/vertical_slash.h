#pragma once

#include "kernels/select/prompt_blocks.h"

namespace kvlab {

// Columns and diagonals that the chunk's last queries attend to most, per query head: P = softmax(q k^T / sqrt(d)) of the last
// min(window_queries, new_tokens) queries, causal; a column's score is its sum over these rows, a diagonal's (distance o = query - key >=
// 0) the sum along it. The first `first_columns` columns and the nearest `near_diagonals` diagonals go before all others, equal scores to
// the lower index. MInference, Jiang et al. 2024, arXiv:2407.02490, Algorithm 2.
// A chosen column is marked in column_marks. A chosen diagonal marks every key block that it crosses in a query block: two blocks unless o
// is a multiple of the block. (The authors cut ranges that start at the diagonal; aligned blocks cover these, and up to 63 keys more.)
struct VerticalSlash {
  PromptBlocks prompt;
  std::int32_t window_queries = 64;
  std::int32_t first_columns = 30, near_diagonals = 100;
  const std::int32_t* columns = nullptr;    // [q_heads] to choose, in CPU memory; a head with 0 of both is unchanged
  const std::int32_t* diagonals = nullptr;  // [q_heads] to choose, in CPU memory
  std::int32_t* marks = nullptr;            // [num_lists, mark_words] added to
  std::int32_t* column_marks = nullptr;     // [q_heads, column_words] added to
};
// 2 head_dim operations per pair for the products and 5 for softmax and sums; keys are read once per KV head.
OpCall call(const VerticalSlash&);
void run_cpu(const VerticalSlash&);

}  // namespace kvlab
