#include <algorithm>

#include "kernels/device/cuda/token_folds.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/select/page_means/page_means.h"

namespace kvlab {

namespace {

struct Means {
  static constexpr int kNumbers = 1;
  const std::int32_t *len, *from, *first;  // first [rows]: earlier windows are unchanged
  float* const* means;
  std::int32_t span_tokens, stride_tokens, head_dim;

  __device__ std::int32_t units(int row) const { return (len[row] + stride_tokens - 1) / stride_tokens - first[row]; }
  __device__ std::int32_t window_begin(int row, int unit) const { return (first[row] + unit) * stride_tokens; }
  __device__ std::int32_t begin(int row, int unit) const { return max(from[row], window_begin(row, unit)); }
  __device__ std::int32_t end(int row, int unit) const { return min(window_begin(row, unit) + span_tokens, len[row]); }
  __device__ void start(float (&x)[1]) const { x[0] = 0.0F; }
  __device__ void add(float (&x)[1], float k) const { x[0] += k; }
  __device__ void join(float (&x)[1], const float (&y)[1]) const { x[0] += y[0]; }
  __device__ void finish(int row, int unit, int channel, float (&x)[1][8], int n) const {
    float* const mean = means[row] + std::int64_t{first[row] + unit} * head_dim + channel;
    const std::int32_t older = begin(row, unit) - window_begin(row, unit);
    const auto count = static_cast<float>(end(row, unit) - window_begin(row, unit));
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if (older > 0 && c < n) x[0][c] += mean[c] * static_cast<float>(older);
      x[0][c] /= count;
    }
    store_up_to8(mean, x[0], n);
  }
};

}  // namespace

void run_cuda(const PageMeans& a, CudaContext& cuda) {
  std::int32_t most = 0;
  std::vector<std::int32_t> first;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    first.push_back(a.first_window(r));
    most = std::max(most, a.windows(r) - first.back());
  }
  if (most == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const auto [from, first_window, means] =
      upload_all(cuda, host_array(a.from, kv.num_rows), std::span<const std::int32_t>(first), host_array(a.means, kv.num_rows));
  launch_token_folds("page_means", cuda, kv, a.kv.type, most,
                     Means{kv.len, from, first_window, means, a.span_tokens, a.stride_tokens, kv.head_dim});
}

}  // namespace kvlab
