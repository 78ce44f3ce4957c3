#pragma once

#include <cstdint>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/device/cuda/device_rows.h"

namespace kvlab {

// Queries [begin, begin + count) of each sequence, as far as it has them.
struct QueryRange {
  std::int32_t begin = 0, count = 0;
};

// w_t p_t[i] of AttentionStats for each query of the range separately: lines [range.count, a.kv.total()], device memory, 0 where a query
// does not see a token or a sequence has no such query. kv: a.kv, on the device. Any type, page and head_dim; products in fp32, a warp
// each. Outputs of `a` are not written.
void write_query_lines(const AttentionStats& a, const DeviceRows& kv, QueryRange range, float* lines, CudaContext& cuda);

}  // namespace kvlab
