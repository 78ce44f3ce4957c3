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

}  // namespace

void run_cuda(const TokenNorms& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  launch_token_sums("token_norms", cuda, kv, a.kv.type, a.of == TokenNorms::Of::kValue, kv.longest, Norms{kv.len, kv.first, a.kind, a.out});
}

}  // namespace kvlab
