#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// For each query head of a row the keep[r] keys of largest product with the step's query, among the row's tokens [begin[r], end[r]): exact
// search. List h of row r is index[index_first[r * group + h] ..), ascending; ties go to the lower token. visit_frac < 1 prices it as a
// search structure that visits this share of the keys, separately for each query head (RetrievalAttention, Liu et al. 2024, section 4: 1 to
// 3 %).
struct NearestKeys {
  KvRows kv;
  const Queries* queries = nullptr;                                      // [kv.num_sequences()], the last one of each counts
  const std::int32_t *begin = nullptr, *end = nullptr, *keep = nullptr;  // [kv.num_rows], keep <= end - begin
  double visit_frac = 1;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows * kv.group + 1]
  std::int32_t* index = nullptr;              // out
};
// Visited keys are read (once per row, or once per query head if heads search separately), lists written; 2 FLOPs per channel, query head
// and visited key.
OpCall call(const NearestKeys&);
void run_cpu(const NearestKeys&);
void run_cuda(const NearestKeys&, CudaContext&);

}  // namespace kvlab
