#include "kernels/attention/delta_rows/delta_rows.h"
#include "kernels/device/cuda/attend_row.cuh"

namespace kvlab {

namespace {

// A block per query head and dense row.
__global__ void __launch_bounds__(kRowThreads) delta_rows(DeltaRows a, std::int64_t strides) {
  const std::int64_t t = blockIdx.x / a.q_heads, h = blockIdx.x % a.q_heads, d = a.head_dim;
  const bool is_tail = t >= strides;
  const std::int64_t row = is_tail ? a.corrected() + t - strides : t * a.stride, n = a.visible(row), first = a.kv_before + row + 1 - n;
  const std::int64_t end = is_tail || row + a.stride > a.corrected() ? a.corrected() : row + a.stride;
  const auto out = [&](std::int64_t i) { return a.out + (i * a.q_heads + h) * d; };
  attend_row(
      a.q + (row * a.q_heads + h) * d, {a.k, a.v, a.kv_heads, d}, h / (a.q_heads / a.kv_heads), n, a.scale,
      [&](std::int64_t j) { return first + j; },
      [&](int c, float dense) {
        const float difference = dense - out(row)[c];
        if (is_tail) out(row)[c] = dense;
        for (std::int64_t i = row; i < end; ++i) out(i)[c] += difference;
      });
}

}  // namespace

void run_cuda(const DeltaRows& a, CudaContext& cuda) {
  check_row_channels("delta_rows", a.head_dim);
  const std::int64_t strides = ceil_div(a.corrected(), a.stride);
  launch("delta_rows", cuda, block_each((strides + a.tail()) * a.q_heads), delta_rows, a, strides);
}

}  // namespace kvlab
