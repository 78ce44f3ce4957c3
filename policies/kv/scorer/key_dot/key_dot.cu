#include "kernels/device/cuda/token_sums.cuh"
#include "policies/kv/scorer/key_dot/key_dot.h"

namespace kvlab {

namespace {

struct Dot {
  static constexpr int kSums = 1, kVectors = 1;
  const std::int32_t* len;
  const std::int64_t* first;
  const float* vectors;
  std::int32_t head_dim;
  float factor;
  float* out;
  __device__ std::int32_t begin(int) const { return 0; }
  __device__ std::int32_t end(int row) const { return len[row]; }
  __device__ const float* vector(int row, int) const { return vectors + std::int64_t{row} * head_dim; }
  __device__ void add(float (&sum)[1], float x, const float (&y)[1]) const { sum[0] += x * y[0]; }
  __device__ void finish(int row, std::int32_t token, const float (&sum)[1]) const { out[first[row] + token] = factor * sum[0]; }
};

}  // namespace

void run_cuda(const KeyDot& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  launch_token_sums("key_dot", cuda, kv, a.kv.type, false, kv.longest, Dot{kv.len, kv.first, a.vectors, kv.head_dim, a.factor, a.out});
}

}  // namespace kvlab
