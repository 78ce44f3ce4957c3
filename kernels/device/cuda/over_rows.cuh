#pragma once

#include "kernels/device/cuda/launch.cuh"

namespace kvlab {

// Elements of ragged rows: block b has chunk b % chunks of row b / chunks.
constexpr int kOverRowsThreads = 256, kOverRowsEach = 4, kOverRowsChunk = kOverRowsThreads * kOverRowsEach;

// f(row, i) for i < f.count(row), in no order.
template <class F>
__global__ void __launch_bounds__(kOverRowsThreads) over_rows(F f, int chunks) {
  const int row = blockIdx.x / chunks;
  const std::int64_t n = f.count(row), begin = std::int64_t{blockIdx.x % chunks} * kOverRowsChunk + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kOverRowsEach; ++j)
    if (begin + j * kOverRowsThreads < n) f(row, begin + j * kOverRowsThreads);
}

template <class F>
void launch_over_rows(const char* name, CudaContext& cuda, std::int64_t rows, std::int64_t longest, const F& f) {
  const std::int64_t chunks = ceil_div(longest, kOverRowsChunk);
  launch(name, cuda, blocks_of(rows * chunks, kOverRowsThreads), over_rows<F>, f, static_cast<int>(chunks));
}

// The longest of rows [first[r], first[r + 1]).
inline std::int64_t longest_row(const std::int64_t* first, std::int64_t rows) {
  std::int64_t longest = 0;
  for (std::int64_t r = 0; r < rows; ++r) longest = first[r + 1] - first[r] > longest ? first[r + 1] - first[r] : longest;
  return longest;
}

}  // namespace kvlab
