#include <cmath>

#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/score/projected_norms/projected_norms.h"

namespace kvlab {

namespace {

constexpr int kTokens = 8;  // per block: every element of W_o is read once for these

struct Project {
  DeviceRows kv;
  const float* w_o;
  std::int32_t hidden_dim;
  bool squares;
  float* out;
  int chunks;
};

// A block per row, query head and kTokens tokens.
template <class T>
__global__ void __launch_bounds__(kRowThreads) project_values(Project a) {
  KVLAB_DYNAMIC_SHARED(float, values);  // [head_dim, kTokens]
  KVLAB_SHARED(float, shared, 33);
  const int d = a.kv.head_dim, head = static_cast<int>(blockIdx.x) / a.chunks % a.kv.group;
  const int row = static_cast<int>(blockIdx.x) / a.chunks / a.kv.group;
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) % a.chunks * kTokens, n = min(kTokens, a.kv.len[row] - first);
  if (n <= 0) return;
  for (int i = threadIdx.x; i < kTokens * d; i += kRowThreads)
    values[i % d * kTokens + i / d] = i / d < n ? load_float(value_at<T>(a.kv, row, first + i / d) + i % d) : 0.0F;
  __syncthreads();
  const std::int64_t width = std::int64_t{a.kv.kv_heads} * a.kv.group * d;
  const float* const columns = a.w_o + (static_cast<std::int64_t>(row % a.kv.kv_heads) * a.kv.group + head) * d;
  float norm[kTokens] = {};
  for (std::int64_t o = threadIdx.x; o < a.hidden_dim; o += kRowThreads) {
    float sum[kTokens] = {};
    for (int c = 0; c < d; ++c) {
      const float w = columns[o * width + c];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) sum[t] += w * values[c * kTokens + t];
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) norm[t] += a.squares ? sum[t] * sum[t] : fabsf(sum[t]);
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float all = block_sum(norm[t], shared);
    if (threadIdx.x == 0 && t < n)
      a.out[a.kv.group * a.kv.first[row] + std::int64_t{head} * a.kv.len[row] + first + t] = a.squares ? sqrtf(all) : all;
  }
}

struct MeanOfGroup {
  DeviceRows kv;
  const float* norms;
  float* out;
  __device__ std::int64_t count(int row) const { return kv.len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    float mean = 0;
    for (int g = 0; g < kv.group; ++g)
      mean += norms[kv.group * kv.first[row] + std::int64_t{g} * kv.len[row] + i] / static_cast<float>(kv.group);
    out[kv.first[row] + i] = mean;
  }
};

}  // namespace

void head_norms(const KvRows& kv, const float* w_o, std::int32_t hidden_dim, ProjectedNorms::Kind kind, float* out, CudaContext& cuda) {
  if (kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  Project a{on_device(kv, cuda), w_o, hidden_dim, kind == ProjectedNorms::Kind::kL2, out, 0};
  a.chunks = static_cast<int>(ceil_div(a.kv.longest, kTokens));
  LaunchShape shape = block_each(std::int64_t{kv.num_rows} * kv.group * a.chunks);
  shape.shared_bytes = static_cast<std::size_t>(kTokens) * static_cast<std::size_t>(kv.head_dim) * sizeof(float);
  for_type(kv.type, [&](auto zero) { launch("projected_norms", cuda, shape, project_values<decltype(zero)>, a); });
}

void run_cuda(const ProjectedNorms& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  float* const norms = cuda.scratch<float>(a.kv.group * a.kv.total());
  head_norms(a.kv, a.w_o, a.hidden_dim, a.kind, norms, cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  launch_over_rows("projected_norms", cuda, kv.num_rows, kv.longest, MeanOfGroup{kv, norms, a.out});
}

}  // namespace kvlab
