#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// A chunk's fit is the smallest cosine of one of its keys to the mean; the outliers[r] chunks of lowest fit (ties to the lower one) are
// outliers. Both lists ascend. ShadowKV, Sun et al. 2024, algorithm 1.
struct ChunkOutliers {
  KvRows kv;
  std::int32_t chunk_tokens = 0;
  const std::int32_t* chosen = nullptr;    // [kv.num_rows] 0: unchanged
  const std::int32_t* chunks = nullptr;    // [kv.num_rows] whole chunks from token 0 on
  const std::int32_t* outliers = nullptr;  // [kv.num_rows] at most `chunks`
  const float* const* means = nullptr;     // [kv.num_rows] -> [chunks, head_dim]
  std::int32_t* const* outlier = nullptr;  // [kv.num_rows] -> [outliers] out
  std::int32_t* const* other = nullptr;    // [kv.num_rows] -> [chunks - outliers] out
};
OpCall call(const ChunkOutliers&);
void run_cpu(const ChunkOutliers&);
void run_cuda(const ChunkOutliers&, CudaContext&);

}  // namespace kvlab
