#include <algorithm>

#include "kernels/device/cuda/token_folds.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/select/page_bounds/page_bounds.h"

namespace kvlab {

namespace {

struct Bounds {
  static constexpr int kNumbers = 2;
  const std::int32_t *len, *from;
  float* const* bounds;
  std::int32_t page_tokens, head_dim;

  __device__ std::int32_t page(int row, int unit) const { return from[row] / page_tokens + unit; }
  __device__ std::int32_t units(int row) const {
    return from[row] < len[row] ? (len[row] - 1) / page_tokens - from[row] / page_tokens + 1 : 0;
  }
  __device__ std::int32_t begin(int row, int unit) const { return max(from[row], page(row, unit) * page_tokens); }
  __device__ std::int32_t end(int row, int unit) const { return min(len[row], (page(row, unit) + 1) * page_tokens); }
  __device__ void start(float (&x)[2]) const { x[0] = INFINITY, x[1] = -INFINITY; }
  __device__ void add(float (&x)[2], float k) const { x[0] = fminf(x[0], k), x[1] = fmaxf(x[1], k); }
  __device__ void join(float (&x)[2], const float (&y)[2]) const { x[0] = fminf(x[0], y[0]), x[1] = fmaxf(x[1], y[1]); }
  __device__ void finish(int row, int unit, int channel, float (&x)[2][8], int n) const {
    float* const low = bounds[row] + std::int64_t{page(row, unit)} * 2 * head_dim + channel;
    float* const high = low + head_dim;
    if (begin(row, unit) % page_tokens != 0) {  // begun before
      for (int c = 0; c < n; ++c) low[c] = fminf(low[c], x[0][c]), high[c] = fmaxf(high[c], x[1][c]);
      return;
    }
    store_up_to8(low, x[0], n);
    store_up_to8(high, x[1], n);
  }
};

}  // namespace

void run_cuda(const PageBounds& a, CudaContext& cuda) {
  std::int64_t most = 0;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    if (a.from[r] < a.kv.len[r]) most = std::max<std::int64_t>(most, (a.kv.len[r] - 1) / a.page_tokens - a.from[r] / a.page_tokens + 1);
  if (most == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const auto [from, bounds] = upload_all(cuda, host_array(a.from, kv.num_rows), host_array(a.bounds, kv.num_rows));
  launch_token_folds("page_bounds", cuda, kv, a.kv.type, most, Bounds{kv.len, from, bounds, a.page_tokens, kv.head_dim});
}

}  // namespace kvlab
