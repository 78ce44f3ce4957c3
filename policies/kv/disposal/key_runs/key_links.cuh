#pragma once

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/row_tools.cuh"

namespace kvlab {

// linked [total]: 1 where a token belongs with the one before it (key_links.h). A warp per token.
template <class T>
__global__ void __launch_bounds__(kRowThreads) mark_links(DeviceRows kv, double min_cosine, std::uint8_t* linked, int chunks) {
  const int row = blockIdx.x / chunks;
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x) % chunks * (kRowThreads / kWarpSize) + warp_index();
  if (i >= kv.len[row]) return;
  const T *const key = key_at<T>(kv, row, i), *const before = key_at<T>(kv, row, max(0, i - 1));
  double square = 0, square_before = 0, product = 0;
  for (int c = lane_index(); c < kv.head_dim; c += kWarpSize) {
    const double x = load_float(key + c), y = load_float(before + c);
    square += x * x, square_before += y * y, product += x * y;
  }
  const double norms = sqrt(warp_sum(square)) * sqrt(warp_sum(square_before));
  product = warp_sum(product);
  if (lane_index() == 0) linked[kv.first[row] + i] = i > 0 && norms > 0 && product >= min_cosine * norms ? 1 : 0;
}

// linked [rows.total] in scratch of `cuda`. `name`: the operation that asks.
inline const std::uint8_t* find_links(const char* name, CudaContext& cuda, const KvRows& kv, const DeviceRows& rows, float min_cosine) {
  auto* const linked = cuda.scratch<std::uint8_t>(rows.total);
  const auto chunks = static_cast<int>(ceil_div(rows.longest, kRowThreads / kWarpSize));
  for_type(kv.type, [&](auto zero) {
    launch(name, cuda, block_each(std::int64_t{rows.num_rows} * chunks), mark_links<decltype(zero)>, rows, static_cast<double>(min_cosine),
           linked, chunks);
  });
  return linked;
}

}  // namespace kvlab
