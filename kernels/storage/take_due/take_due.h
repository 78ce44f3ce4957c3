#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Lists and marks the tokens of each row that are to be encoded, oldest first: of u tokens without the mark `bit` in word `channel` the
// oldest max(0, u - residual_tokens), rounded down to whole blocks and cut to the list's room; then -1. A token that several sequences
// share as a prefix (same pages) is listed for the first of them.
struct TakeDue {
  KvRows kv;
  std::int32_t channel = 0;
  std::uint32_t bit = 1;
  std::int32_t residual_tokens = 0, block_tokens = 1;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  std::int32_t* index = nullptr;        // [first[num_rows]] out
};
OpCall call(const TakeDue&);
void run_cpu(const TakeDue&);
void run_cuda(const TakeDue&, CudaContext&);

// Splits each row's list: the `keep` highest scores (ties to the earlier entry) and the others, both in the list's order. Entries of -1
// count as the lowest and stay at the ends.
struct SplitListed {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;       // [num_rows + 1]
  const std::int32_t* index = nullptr;       // [first[num_rows]]
  const std::int64_t* row_first = nullptr;   // [num_rows + 1] offsets of scores
  const float* scores = nullptr;             // [row_first[num_rows]]
  const std::int64_t* high_first = nullptr;  // [num_rows + 1]; `low`: first - high_first
  std::int32_t* high = nullptr;              // out
  std::int32_t* low = nullptr;               // out
};
OpCall call(const SplitListed&);
void run_cpu(const SplitListed&);
void run_cuda(const SplitListed&, CudaContext&);

}  // namespace kvlab
