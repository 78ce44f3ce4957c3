#pragma once

#include "kernels/device/cuda/device.cuh"

namespace kvlab {

// A = L L^T of a positive definite [d, d]: the lower triangle becomes L. All threads of a block call it; ends with a barrier.
__device__ __forceinline__ void block_cholesky(double* a, int d) {
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  for (int c = 0; c < d; ++c) {
    __syncthreads();
    const double pivot = sqrt(a[std::int64_t{c} * d + c]);
    __syncthreads();
    if (thread == 0) a[std::int64_t{c} * d + c] = pivot;
    for (int i = c + 1 + thread; i < d; i += threads) a[std::int64_t{i} * d + c] /= pivot;
    __syncthreads();
    const int rest = d - c - 1;
    for (int at = thread; at < rest * rest; at += threads) {
      const int i = c + 1 + at / rest, j = c + 1 + at % rest;
      if (j <= i) a[std::int64_t{i} * d + j] -= a[std::int64_t{i} * d + c] * a[std::int64_t{j} * d + c];
    }
  }
  __syncthreads();
}

}  // namespace kvlab
