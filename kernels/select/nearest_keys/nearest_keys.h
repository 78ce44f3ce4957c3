#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// The keep[r] keys of largest product with each query head, among tokens [begin[r], end[r]). List h of row r begins at index_first[r *
// group + h], ascending; ties go to the lower token. visit_frac < 1 prices a search of this share of the keys (RetrievalAttention, Liu et
// al. 2024, section 4: 1 to 3 %).
struct NearestKeys {
  KvRows kv;
  const Queries* queries = nullptr;                                      // [kv.num_sequences()], last query only
  const std::int32_t *begin = nullptr, *end = nullptr, *keep = nullptr;  // [kv.num_rows], keep <= end - begin
  double visit_frac = 1;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows * kv.group + 1]
  std::int32_t* index = nullptr;              // out
};
// Visited keys are read once per row, or per query head if visit_frac < 1.
OpCall call(const NearestKeys&);
void run_cpu(const NearestKeys&);
void run_cuda(const NearestKeys&, CudaContext&);

}  // namespace kvlab
