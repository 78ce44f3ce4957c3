#pragma once

#include "kernels/device/cuda/device.cuh"

namespace kvlab {

constexpr int kMassThreads = 256;

// Leading entries of a descending row [n], none negative, with a sum of at least share * the row's sum. Threads sum stretches and one
// thread adds these in order, so that the sums ascend and end in the total. All threads call it; `sums` [kMassThreads + 1] and `found` [1]
// are scratch.
__device__ __forceinline__ std::int32_t leading_mass(const float* row, std::int64_t n, double share, double* sums, std::int32_t* found) {
  const std::int64_t each = (n + kMassThreads - 1) / kMassThreads;
  const std::int64_t begin = min(n, each * threadIdx.x), end = min(n, begin + each);
  double sum = 0;
  for (std::int64_t i = begin; i < end; ++i) sum += static_cast<double>(row[i]);
  sums[threadIdx.x + 1] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    sums[0] = 0;
    for (int t = 1; t <= kMassThreads; ++t) sums[t] += sums[t - 1];
    *found = share * sums[kMassThreads] > 0 ? static_cast<std::int32_t>(n) : 0;
  }
  __syncthreads();
  const double before = sums[threadIdx.x], wanted = share * sums[kMassThreads];
  sum = 0;
  for (std::int64_t i = begin; i < end && before < wanted; ++i) {
    sum += static_cast<double>(row[i]);
    if (!(before + sum >= wanted)) continue;
    atomicMin(found, static_cast<std::int32_t>(i) + 1);
    break;
  }
  __syncthreads();
  return *found;
}

}  // namespace kvlab
