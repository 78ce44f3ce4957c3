#pragma once

#include <cstdint>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/device/cuda/device_rows.h"

namespace kvlab {

struct QueryRange {
  std::int32_t begin = 0, count = 0;
};

// w_t p_t[i] per query: lines [range.count, a.kv.total()], 0 if not visible. kv: a.kv on the device. Does not write outputs of `a`.
void write_query_lines(const AttentionStats& a, const DeviceRows& kv, QueryRange range, float* lines, CudaContext& cuda);

}  // namespace kvlab
