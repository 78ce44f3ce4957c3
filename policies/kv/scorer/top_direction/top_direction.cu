#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/scorer/top_direction/top_direction.h"

namespace kvlab {

namespace {

constexpr int kMostDim = 1024;

struct Direction {
  const Queries* queries;
  std::int32_t kv_heads, group, head_dim, iterations;
  double* gram;  // [rows, head_dim + 1, head_dim] Q^T Q, then the sum of the queries
  float* out;
};

// A block per line.
__global__ void __launch_bounds__(kRowThreads) sum_queries(Direction a) {
  const int d = a.head_dim, row = blockIdx.x / (d + 1), line = blockIdx.x % (d + 1);
  const Queries q = a.queries[row / a.kv_heads];
  for (int c = threadIdx.x; c < d; c += kRowThreads) {
    double sum = 0;
    for (std::int64_t t = 0; t < q.count; ++t) {
      for (int g = 0; g < a.group; ++g) {
        const float* const x = q.data + ((t * a.kv_heads + row % a.kv_heads) * a.group + g) * d;
        sum += line == d ? double{x[c]} : double{x[line]} * double{x[c]};
      }
    }
    a.gram[std::int64_t{blockIdx.x} * d + c] = sum;
  }
}

// A block per row.
__global__ void __launch_bounds__(kRowThreads) iterate(Direction a) {
  KVLAB_SHARED(double, shared, 33);
  KVLAB_SHARED(double, u, kMostDim);
  const int d = a.head_dim;
  const double *const gram = a.gram + std::int64_t{blockIdx.x} * (d + 1) * d, *const mean = gram + std::int64_t{d} * d;
  const auto length = [&] {
    double square = 0;
    for (int c = threadIdx.x; c < d; c += kRowThreads) square += u[c] * u[c];
    return sqrt(block_sum(square, shared));
  };
  for (int c = threadIdx.x; c < d; c += kRowThreads) u[c] = mean[c];
  double norm = length();
  double next[kMostDim / kRowThreads] = {};
  for (int i = 0; i < a.iterations && norm > 0; ++i) {
#pragma unroll
    for (int j = 0; j < kMostDim / kRowThreads; ++j) {
      const int c = static_cast<int>(threadIdx.x) + j * kRowThreads;
      double sum = 0;
      if (c < d)
        for (int k = 0; k < d; ++k) sum += gram[std::int64_t{k} * d + c] * (u[k] / norm);
      next[j] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kMostDim / kRowThreads; ++j)
      if (static_cast<int>(threadIdx.x) + j * kRowThreads < d) u[threadIdx.x + j * kRowThreads] = next[j];
    norm = length();
  }
  double along = 0;
  for (int c = threadIdx.x; c < d; c += kRowThreads) along += u[c] * mean[c];
  along = block_sum(along, shared);
  const double factor = norm > 0 ? (along < 0 ? -1 / norm : 1 / norm) : 0;
  for (int c = threadIdx.x; c < d; c += kRowThreads) a.out[std::int64_t{blockIdx.x} * d + c] = static_cast<float>(u[c] * factor);
}

}  // namespace

void run_cuda(const TopDirection& a, CudaContext& cuda) {
  const std::int64_t rows = std::int64_t{a.num_sequences} * a.kv_heads, d = a.head_dim;
  if (rows == 0) return;
  if (d > kMostDim) throw CudaError("top_direction: heads of more than " + std::to_string(kMostDim) + " channels");
  const CudaContext::Frame frame(cuda);
  const Direction on_gpu{cuda.upload(a.queries, a.num_sequences),  a.kv_heads, a.group, a.head_dim, a.iterations,
                         cuda.scratch<double>(rows * (d + 1) * d), a.out};
  launch("top_direction", cuda, block_each(rows * (d + 1)), sum_queries, on_gpu);
  launch("top_direction", cuda, block_each(rows), iterate, on_gpu);
}

}  // namespace kvlab
