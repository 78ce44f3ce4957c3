#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// largest[line[r], c] = max(itself, |q_c| over the queries of the row's sequence and the heads of its group); rows with line -1 are
// left out.
struct LargestQueries {
  KvRows kv;
  const Queries* queries = nullptr;    // [num_sequences]
  const std::int32_t* line = nullptr;  // [num_rows]
  float* largest = nullptr;            // [*, head_dim] in and out
};
// Queries are read at 2 bytes per element, lines read and written in fp32; two operations per element.
OpCall call(const LargestQueries&);
void run_cpu(const LargestQueries&);
void run_cuda(const LargestQueries&, CudaContext&);

// Divisors of key channels that leave keys and queries alike in size: sqrt(max |k_c| / max |q_c|), 1 where either is 0 (MiKV, Yang
// et al. 2024, arXiv:2402.18096, eq. 5, whose balancer is the inverse).
struct BalanceChannels {
  std::int32_t num_rows = 0, head_dim = 0;
  const std::int32_t* line = nullptr;  // [num_rows], -1: left out
  const float* largest_q = nullptr;    // [*, head_dim]
  float* lines = nullptr;              // [*, head_dim] in: largest |k|; out: divisors
};
// Two lines are read, one is written; a root counts as 10 operations.
OpCall call(const BalanceChannels&);
void run_cpu(const BalanceChannels&);
void run_cuda(const BalanceChannels&, CudaContext&);

}  // namespace kvlab
