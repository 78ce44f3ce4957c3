#pragma once

#include <algorithm>
#include <cstdint>

#include "base/ceil_div.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Mean key of each window of a row: window j holds the row's tokens in [j * stride_tokens, j * stride_tokens + span_tokens),
// j < ceil(len / stride_tokens). Folds tokens from[r] .. len[r] in: a window that begins before from[r] holds the mean of its older tokens,
// whose keys are not read again (they may be encoded by now); windows without a new token are unchanged. Equal stride and span: plain
// chunks (TriForce, Sun et al. 2024); overlapping ones: InfLLM v2's kernels (MiniCPM4, 2025).
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
  // Windows that began before this step; they come first.
  [[nodiscard]] std::int32_t begun_windows(std::int32_t row) const {
    return std::max(0, std::min(windows(row), ceil_div(from[row], stride_tokens)) - first_window(row));
  }
};
// New keys are read once and means written at the keys' precision (and read where the window had begun before); one addition per
// channel, window and new token, and one for an older mean.
OpCall call(const PageMeans&);
void run_cpu(const PageMeans&);
void run_cuda(const PageMeans&, CudaContext&);

}  // namespace kvlab
