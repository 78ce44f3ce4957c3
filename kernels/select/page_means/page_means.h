#pragma once

#include <algorithm>
#include <cstdint>

#include "base/ceil_div.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Mean key of windows [j * stride_tokens, j * stride_tokens + span_tokens), j < ceil(len / stride_tokens). Folds in tokens [from[r],
// len[r]); a begun window's mean replaces its older keys. Chunks (TriForce, Sun et al. 2024) if stride = span; otherwise InfLLM v2's
// kernels (MiniCPM4, 2025).
struct PageMeans {
  KvRows kv;
  std::int32_t span_tokens = 0, stride_tokens = 0;  // stride_tokens <= span_tokens
  const std::int32_t* from = nullptr;               // [num_rows]
  float* const* means = nullptr;                    // [num_rows] -> [windows, head_dim]

  [[nodiscard]] std::int32_t windows(std::int32_t row) const { return ceil_div(kv.len[row], stride_tokens); }
  [[nodiscard]] std::int32_t first_window(std::int32_t row) const {
    if (from[row] >= kv.len[row]) return windows(row);
    return from[row] < span_tokens ? 0 : (from[row] - span_tokens) / stride_tokens + 1;
  }
  // Begun before this step; they come first.
  [[nodiscard]] std::int32_t begun_windows(std::int32_t row) const {
    return std::max(0, std::min(windows(row), ceil_div(from[row], stride_tokens)) - first_window(row));
  }
};
OpCall call(const PageMeans&);
void run_cpu(const PageMeans&);
void run_cuda(const PageMeans&, CudaContext&);

}  // namespace kvlab
