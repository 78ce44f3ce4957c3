#include "kernels/attention/merge_partials/merge_partials.h"
#include "kernels/device/cuda/launch.cuh"

namespace kvlab {

namespace {

constexpr int kThreads = 128;

// A thread takes four channels of a row.
template <class T>
__global__ void __launch_bounds__(kThreads) merge(DeviceMergePartials a) {
  const int quads = a.head_dim / 4;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x, row = i / quads;
  const int channel = static_cast<int>(i % quads) * 4;
  if (row >= a.rows) return;
  constexpr float kNothing = -INFINITY;
  float top = kNothing;
  for (int p = 0; p < a.num_parts; ++p) top = fmaxf(top, a.log_sums[p * a.rows + row]);
  float sum = 0, x[4] = {};
  for (int p = 0; p < a.num_parts && top != kNothing; ++p) {
    const float log_sum = a.log_sums[p * a.rows + row];
    if (log_sum == kNothing) continue;
    const float weight = expf(log_sum - top);
    const float4 part = *reinterpret_cast<const float4*>(a.parts + (p * a.rows + row) * a.head_dim + channel);
    sum += weight;
    x[0] += weight * part.x, x[1] += weight * part.y, x[2] += weight * part.z, x[3] += weight * part.w;
  }
  const float factor = top == kNothing ? 0.0F : 1.0F / sum;
  T* out = static_cast<T*>(a.out) + row * a.head_dim + channel;
  if constexpr (sizeof(T) == 2)
    *reinterpret_cast<uint2*>(out) = make_uint2(pack<T>(x[0] * factor, x[1] * factor), pack<T>(x[2] * factor, x[3] * factor));
  else
    *reinterpret_cast<float4*>(out) = make_float4(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
  if (a.log_sum != nullptr && channel == 0) a.log_sum[row] = top == kNothing ? kNothing : top + logf(sum);
}

}  // namespace

void run_cuda(const DeviceMergePartials& a, CudaContext& cuda) {
  if (a.rows == 0 || a.head_dim == 0) return;
  if (a.head_dim % 4 != 0) throw CudaError("merge_partials: head_dim " + std::to_string(a.head_dim) + " is not a multiple of 4");
  for_type(a.type, [&](auto zero) {
    const auto blocks = static_cast<unsigned>(ceil_div(a.rows * (a.head_dim / 4), kThreads));
    launch("merge_partials", cuda, blocks_of(blocks, kThreads), merge<decltype(zero)>, a);
  });
}

}  // namespace kvlab
