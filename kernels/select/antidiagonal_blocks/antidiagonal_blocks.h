#pragma once

#include "kernels/select/prompt_blocks.h"

namespace kvlab {

// Marks the key blocks that hold `threshold` of a query block's attention, estimated from every stride-th antidiagonal sum: for groups I of
// queries and J <= I of keys, `stride` tokens each, z[I, J] = sum over u < stride of q[I stride + stride - 1 - u] . k[J stride + u] /
// (stride sqrt(d)), softmax over J, added up inside blocks. A list takes the first block and its own one, then others by falling sum until
// it holds the threshold of the row's total; equal sums go to the lower block. Groups begin at multiples of the stride; tokens that a group
// lacks count as zeros. XAttention, Xu et al. 2025, arXiv:2503.16428, Algorithm 1.
struct AntidiagonalBlocks {
  PromptBlocks prompt;
  std::int32_t stride = 16;  // divides the block
  double threshold = 0.9;
  std::int32_t* marks = nullptr;  // [num_lists, mark_words] added to
};
// 2 head_dim stride operations per causal pair of groups for the products and 3 for softmax and sums; keys are read once per KV head.
OpCall call(const AntidiagonalBlocks&);
void run_cpu(const AntidiagonalBlocks&);

}  // namespace kvlab
