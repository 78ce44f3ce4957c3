#pragma once

#include "kernels/select/prompt_blocks.h"

namespace kvlab {

// Marks key blocks by FlexPrefill, Lai et al. 2025, arXiv:2502.20766, Algorithms 1 to 4, as in the authors' code. Per query head:
// 1. P: attention of the chunk's last `block` queries. Columns and diagonals (by distance) are summed, then added up inside blocks.
// 2. The head is query-aware if sqrt(JSD(softmax(mean q . k_j / sqrt(d)), sums of columns in block j)) < tau. k_j is the mean key of
//    block j; the logarithm is natural;
//    1e-12 is added to both.
// 3. For columns and for diagonals, n is the smallest number that holds `gamma` of the mass. The n / 128 + 1 blocks of largest sum are
//    taken, at least min_blocks and at most max_blocks (a query-aware head: min_blocks). Block 0 and the own block go first.
//    A block of columns is marked in every list that it is not after, a block of diagonals (128 distances) by its offset from the own
//    block.
// 4. A query-aware head also takes pairs of blocks by falling softmax(q_i . k_j / sqrt(d)) over j, over all its rows together,
//    while their sum
//    is at most gamma times the number of rows.
// The paper's block is 128.
struct FlexBlocks {
  PromptBlocks prompt;
  double gamma = 0.9, tau = 0.1;
  std::int32_t min_blocks = 8, max_blocks = 1 << 24;
  std::int32_t* marks = nullptr;  // [num_lists, mark_words] added to
};
// As if every head were query-aware: products of the last queries, block means, and products of all causal pairs of means.
OpCall call(const FlexBlocks&);
void run_cpu(const FlexBlocks&);

}  // namespace kvlab
