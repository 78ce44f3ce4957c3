#include "kernels/device/cuda/token_sums.cuh"
#include "kernels/score/token_norms/token_norms.h"

namespace kvlab {

namespace {

struct Norms {
  static constexpr int kSums = 1, kVectors = 0;
  const std::int32_t* len;
  const std::int64_t* first;
  TokenNorms::Kind kind;
  float* out;
  __device__ std::int32_t begin(int) const { return 0; }
  __device__ std::int32_t end(int row) const { return len[row]; }
  __device__ const float* vector(int, int) const { return nullptr; }
  __device__ void add(float (&sum)[1], float x, const float (&)[1]) const { sum[0] += kind == TokenNorms::Kind::kL1 ? fabsf(x) : x * x; }
  __device__ void finish(int row, std::int32_t token, const float (&sum)[1]) const {
    out[first[row] + token] = kind == TokenNorms::Kind::kL2 ? sqrtf(sum[0]) : sum[0];
  }
};

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

void run_cuda(const TokenNorms& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const bool values = a.of == TokenNorms::Of::kValue;
  if (a.kind == TokenNorms::Kind::kDot)
    launch_token_sums("key_dot", cuda, kv, a.kv.type, values, kv.longest, Dot{kv.len, kv.first, a.vectors, kv.head_dim, a.factor, a.out});
  else
    launch_token_sums("token_norms", cuda, kv, a.kv.type, values, kv.longest, Norms{kv.len, kv.first, a.kind, a.out});
}

}  // namespace kvlab
