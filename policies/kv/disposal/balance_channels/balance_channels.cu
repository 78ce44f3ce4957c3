#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/disposal/balance_channels/balance_channels.h"

namespace kvlab {

namespace {

struct Largest {
  const Queries* queries;
  const std::int32_t* line;
  std::int32_t kv_heads, group, head_dim;
  float* largest;
  __device__ std::int64_t count(int row) const { return line[row] < 0 ? 0 : head_dim; }
  __device__ void operator()(int row, std::int64_t c) const {
    const Queries q = queries[row / kv_heads];
    float& out = largest[std::int64_t{line[row]} * head_dim + c];
    float x = out;
    for (std::int64_t t = 0; t < q.count; ++t)
      for (int g = 0; g < group; ++g) x = fmaxf(x, fabsf(q.data[((t * kv_heads + row % kv_heads) * group + g) * head_dim + c]));
    out = x;
  }
};

struct Balance {
  const std::int32_t* line;
  std::int32_t head_dim;
  const float* largest_q;
  float* lines;
  __device__ std::int64_t count(int row) const { return line[row] < 0 ? 0 : head_dim; }
  __device__ void operator()(int row, std::int64_t at) const {
    const std::int64_t c = std::int64_t{line[row]} * head_dim + at;
    const float ratio = sqrtf(lines[c] / largest_q[c]);
    lines[c] = ratio > 0.0F && ratio < INFINITY ? ratio : 1.0F;
  }
};

}  // namespace

void run_cuda(const LargestQueries& a, CudaContext& cuda) {
  if (a.kv.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [queries, line] = upload_all(cuda, host_array(a.queries, a.kv.num_sequences()), host_array(a.line, a.kv.num_rows));
  launch_over_rows("largest_queries", cuda, a.kv.num_rows, a.kv.head_dim,
                   Largest{queries, line, a.kv.kv_heads, a.kv.group, a.kv.head_dim, a.largest});
}

void run_cuda(const BalanceChannels& a, CudaContext& cuda) {
  if (a.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  launch_over_rows("balance_channels", cuda, a.num_rows, a.head_dim,
                   Balance{cuda.upload(a.line, a.num_rows), a.head_dim, a.largest_q, a.lines});
}

}  // namespace kvlab
