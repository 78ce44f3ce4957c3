#pragma once

#include <vector>

#include "kernels/select/prompt_blocks.h"

// Include only in *_cpu.cpp files.
namespace kvlab {

// Attention of the last `window` queries of a chunk in one query head, summed along columns and along diagonals (by distance query - key).
struct WindowSums {
  std::vector<float> columns, diagonals;  // [end]
};
WindowSums window_sums(const PromptBlocks& prompt, std::int64_t window, std::int64_t head);

// The k best of `scores`, ascending by index; equal scores go to the lower index.
std::vector<std::int32_t> best_of(const std::vector<float>& scores, std::int64_t k);

// Marks the key blocks that diagonal `distance` crosses, for every query block of the head.
void mark_diagonal(const PromptBlocks& prompt, std::int64_t head, std::int64_t distance, std::int32_t* marks);

// Means of the rows of each block: x [tokens, heads, head_dim], block 0 of the result is the one that holds `first_position`.
std::vector<float> block_means(const float* x, std::int64_t tokens, std::int64_t heads, std::int64_t head, std::int64_t head_dim,
                               std::int64_t first_position, std::int64_t block);

}  // namespace kvlab
