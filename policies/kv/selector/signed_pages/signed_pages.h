#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Attention over pages reduced in two ways, along the sequence to one value per page and channel and along the channels to the few of
// largest query: stage 2 of RocketKV, Behnam et al. 2025, arXiv:2502.14051. The value is the page's largest where the sum of the row's
// query heads is positive in that channel, else its smallest. The channels[r] channels of largest mean |q| over the query heads count (ties
// to the lower one). Per query head, logits are divided by sqrt(d * share of |q| in these channels) and go through a softmax over the
// pages; the mean over the query heads is the score of each of the page's tokens.
struct SignedPages {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2, page_tokens = 1;
  const Queries* queries = nullptr;        // [num_rows / kv_heads], the last one of each counts
  const float* const* bounds = nullptr;    // [num_rows] -> [pages, 2, head_dim], as PageBounds has them
  const std::int32_t* channels = nullptr;  // [num_rows] 1 to head_dim
  const std::int64_t* first = nullptr;     // [num_rows + 1] tokens scored, whole pages from the row's begin on
  float* scores = nullptr;                 // [first[num_rows]] out
};
// One value per page and chosen channel is read, scores are written; 2 FLOPs per head, page and channel, 4 per head and page for the
// softmax.
OpCall call(const SignedPages&);
void run_cpu(const SignedPages&);

}  // namespace kvlab
