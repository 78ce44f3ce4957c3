#pragma once

#include "kernels/select/prompt_blocks.h"

namespace kvlab {

// Marks, for each query block, the `top` key blocks up to its own whose mean key has the largest product with its mean query, the own one
// first; equal products go to the lower block. Means of a block in part are those of the part. The block-sparse pattern of MInference,
// Jiang et al. 2024, arXiv:2407.02490, Algorithm 3.
struct PooledBlocks {
  PromptBlocks prompt;
  const std::int32_t* top = nullptr;  // [q_heads] in CPU memory; a head with 0 is unchanged
  std::int32_t* marks = nullptr;      // [num_lists, mark_words] added to
};
// Queries and keys are read once and added up; 2 head_dim operations per causal pair of blocks, and one comparison.
OpCall call(const PooledBlocks&);
void run_cpu(const PooledBlocks&);

}  // namespace kvlab
