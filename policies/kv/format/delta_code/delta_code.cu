#include <cmath>

#include "kernels/device/cuda/download.h"
#include "kernels/device/cuda/listed_tools.cuh"
#include "policies/kv/format/delta_code/delta_code.h"

namespace kvlab {

namespace {

constexpr int kWarps = kRowThreads / kWarpSize, kMostDim = 512, kEach = kMostDim / kWarpSize, kAnchorLevels = 256;

struct Deltas {
  DeviceList list;
  std::int32_t group_tokens, levels;
  std::int32_t* counts;  // [num_rows, head_dim, levels] of the differences' symbols
  std::int32_t* tokens;  // [num_rows]
  int chunks;
};

// The lane's channels of a token are decoded; symbol(channel, code). By a whole warp.
template <class Symbol>
__device__ __forceinline__ void code_token(float (&x)[kEach], int d, int levels, Symbol&& symbol) {
  float largest = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    if (lane_index() + j * kWarpSize < d && x[j] == x[j]) largest = fmaxf(largest, fabsf(x[j]));
  const auto most = static_cast<float>(levels / 2 - 1);
  const float scale = as_half(warp_max(largest)) / most;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int c = lane_index() + j * kWarpSize;
    if (c >= d) continue;
    const float code = scale > 0.0F && x[j] == x[j] ? fminf(fmaxf(rintf(x[j] / scale), -most), most) : 0.0F;
    symbol(c, static_cast<std::int32_t>(code + most));
    x[j] = code * scale;
  }
}

// A warp per group of tokens. The anchor stays in registers as float32.
template <class T>
__global__ void __launch_bounds__(kRowThreads) code_groups(Deltas a) {
  const int row = blockIdx.x / a.chunks, group = blockIdx.x % a.chunks * kWarps + warp_index(), d = a.list.rows.head_dim;
  const std::int32_t tokens = listed_count(a.list, row), begin = group * a.group_tokens, end = min(begin + a.group_tokens, tokens);
  if (group == 0 && lane_index() == 0) a.tokens[row] = tokens;
  float anchor[kEach] = {};
  for (std::int32_t i = begin; i < end; ++i) {
    T* const token = listed_at<T>(a.list, row, i);
    float x[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int c = lane_index() + j * kWarpSize;
      x[j] = c < d ? load_float(token + c) - (i == begin ? 0.0F : anchor[j]) : 0.0F;
    }
    if (i == begin)
      code_token(x, d, kAnchorLevels, [](int, std::int32_t) {});
    else
      code_token(x, d, a.levels,
                 [&](int c, std::int32_t symbol) { atomicAdd(&a.counts[(std::int64_t{row} * d + c) * a.levels + symbol], 1); });
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int c = lane_index() + j * kWarpSize;
      if (i == begin)
        anchor[j] = x[j];
      else
        x[j] += anchor[j];
      if (c < d) store_float(token + c, x[j]);
    }
  }
}

}  // namespace

void run_cuda(const DeltaCode& a, CudaContext& cuda) {
  if (a.tokens.total() == 0) return;
  const std::int32_t d = a.tokens.kv.head_dim, rows = a.tokens.kv.num_rows;
  if (d > kMostDim) throw CudaError("delta_code: heads of more than " + std::to_string(kMostDim) + " channels");
  const CudaContext::Frame frame(cuda);
  const std::int64_t numbers = std::int64_t{rows} * d * a.levels;
  Deltas on_gpu{
      on_device(a.tokens, cuda), a.group_tokens, a.levels, cuda.scratch<std::int32_t>(numbers), cuda.scratch<std::int32_t>(rows), 0};
  on_gpu.chunks = static_cast<int>(ceil_div(ceil_div(on_gpu.list.longest, a.group_tokens), kWarps));
  cuda::fill(on_gpu.counts, 0, numbers * 4, cuda.stream());
  for_type(a.tokens.kv.type, [&](auto zero) {
    launch("delta_code", cuda, block_each(std::int64_t{rows} * on_gpu.chunks), code_groups<decltype(zero)>, on_gpu);
  });
  const std::vector<std::int32_t> counts = download(cuda, on_gpu.counts, numbers), tokens = download(cuda, on_gpu.tokens, rows);
  for (std::int32_t r = 0; r < rows; ++r) {
    if (a.tokens.entries(r) == 0) continue;
    double bits = 0;
    for (std::int64_t c = 0; c < d; ++c)
      bits += entropy_bits({counts.data() + (std::int64_t{r} * d + c) * a.levels, static_cast<std::size_t>(a.levels)});
    const std::int64_t n = tokens[static_cast<std::size_t>(r)], anchors = (n + a.group_tokens - 1) / a.group_tokens;
    a.bytes[r] += static_cast<std::int32_t>(2 * n + anchors * d + static_cast<std::int64_t>(std::ceil(bits / 8)));
  }
}

}  // namespace kvlab
