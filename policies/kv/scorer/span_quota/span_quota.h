#pragma once

#include <cstdint>
#include <limits>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Each row is seen as spans of positions: span j of sequence s begins at begin[first[s] + j] and ends where the next one begins (the
// last one: nowhere). In each span the quota[r, j] tokens of largest score, or all where fewer are held, get `value` at least. Quotas of
// row r start at quota[quota_first[r]]. Ties go to the lower index. In place.
struct SpanQuota {
  KvRows kv;
  const std::int64_t* first = nullptr;        // [num_sequences + 1] spans of each sequence
  const std::int32_t* begin = nullptr;        // [first[num_sequences]] positions, ascending, the first one 0
  const std::int64_t* quota_first = nullptr;  // [num_rows + 1]
  const std::int32_t* quota = nullptr;        // [quota_first[num_rows]]
  float value = std::numeric_limits<float>::infinity();
  float* scores = nullptr;  // [kv.total()]
};
OpCall call(const SpanQuota&);
void run_cpu(const SpanQuota&);
void run_cuda(const SpanQuota&, CudaContext&);

}  // namespace kvlab
