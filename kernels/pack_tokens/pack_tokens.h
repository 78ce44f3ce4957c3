#pragma once

#include "kernels/cuda/memory.h"
#include "kernels/kv_rows.h"

namespace kvlab {

// Copies listed tokens of rows into consecutive memory, row after row, or back from there: keys, values, and marks (positions and
// statistics). A null array takes no part.
struct PackTokens {
  KvRows kv;
  const std::int64_t* first = nullptr;  // [kv.num_rows + 1] where each row's list begins; host memory
  const std::int32_t* index = nullptr;  // [listed] tokens of the rows; null: the first ones of each row
  void* k = nullptr;                    // [listed, head_dim] of kv.type
  void* v = nullptr;                    // [listed, head_dim] of kv.type
  std::uint32_t* marks = nullptr;       // [1 + kv.num_words, listed] positions, then each word of all tokens
  bool unpacks = false;                 // to the rows

  [[nodiscard]] std::int64_t listed() const { return kv.num_rows == 0 ? 0 : first[kv.num_rows]; }
};
void run_cpu(const PackTokens& a);
void run_cuda(const PackTokens& a, CudaContext& cuda);  // index, k, v and marks are device memory.

}  // namespace kvlab
