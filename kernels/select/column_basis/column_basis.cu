#include <algorithm>

#include "kernels/device/cuda/block_team.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/symmetric_eigen.cuh"
#include "kernels/select/column_basis/column_basis.h"

namespace kvlab {

namespace {

struct Basis {
  const std::int32_t* chosen;
  std::int32_t kv_heads, head_dim, width;
  const float* const* abs_sum;
  const float* const* gram;
  float* const* basis;
  double *matrix, *vectors;  // [num_rows, head_dim, head_dim]
};

// One block per row.
__global__ void __launch_bounds__(kRowThreads) largest_channels(Basis a) {
  KVLAB_SHARED(std::int32_t, counts, 33);
  KVLAB_SHARED(std::uint64_t, sums, 33);
  const int row = blockIdx.x, d = a.head_dim;
  if (a.chosen[row / a.kv_heads] == 0) return;
  float* const basis = a.basis[row];
  for (std::int64_t i = threadIdx.x; i < std::int64_t{a.width} * d; i += kRowThreads) basis[i] = 0.0F;
  const auto key = [&](std::int32_t c) { return ordered_key(a.abs_sum[row][c]); };
  block_choose(d, block_cut(d, a.width, key, counts), key, sums, [&](std::int32_t c, bool is_chosen, std::int32_t before) {
    if (is_chosen) basis[std::int64_t{before} * d + c] = 1.0F;
  });
}

// One block per row.
__global__ void __launch_bounds__(kRowThreads) leading_vectors(Basis a) {
  KVLAB_SHARED(double, shared, 2 * kMostEigenDim + 33);
  const int row = blockIdx.x, d = a.head_dim;
  if (a.chosen[row / a.kv_heads] == 0) return;
  double* const matrix = a.matrix + std::int64_t{row} * d * d;
  double* const vectors = a.vectors + std::int64_t{row} * d * d;
  for (int i = threadIdx.x; i < d * d; i += kRowThreads) matrix[i] = a.gram[row][i];
  block_symmetric_eigen(matrix, vectors, d, shared);
  for (int j = threadIdx.x; j < d; j += kRowThreads) {
    int larger = 0;
    for (int i = 0; i < d; ++i) {
      const double x = matrix[std::int64_t{i} * d + i], mine = matrix[std::int64_t{j} * d + j];
      larger += x > mine || (x == mine && i < j) ? 1 : 0;
    }
    if (larger >= a.width) continue;
    for (int c = 0; c < d; ++c) a.basis[row][std::int64_t{larger} * d + c] = static_cast<float>(vectors[std::int64_t{c} * d + j]);
  }
}

}  // namespace

void run_cuda(const ColumnBasis& a, CudaContext& cuda) {
  const std::int32_t sequences = a.num_rows / a.kv_heads;
  if (std::all_of(a.chosen, a.chosen + sequences, [](std::int32_t chosen) { return chosen == 0; })) return;
  if (a.skew && a.head_dim > kMostEigenDim)
    throw CudaError("column_basis: heads of more than " + std::to_string(kMostEigenDim) + " channels");
  const CudaContext::Frame frame(cuda);
  const auto [chosen, abs_sum, gram, basis] =
      upload_all(cuda, host_array(a.chosen, sequences), host_array(a.skew ? nullptr : a.abs_sum, a.num_rows),
                 host_array(a.skew ? a.gram : nullptr, a.num_rows), host_array(a.basis, a.num_rows));
  Basis b{chosen, a.kv_heads, a.head_dim, a.width, abs_sum, gram, basis, nullptr, nullptr};
  if (a.skew) {
    const std::int64_t numbers = std::int64_t{a.num_rows} * a.head_dim * a.head_dim;
    b.matrix = cuda.scratch<double>(numbers), b.vectors = cuda.scratch<double>(numbers);
    launch("column_basis", cuda, block_each(a.num_rows), leading_vectors, b);
  } else {
    launch("column_basis", cuda, block_each(a.num_rows), largest_channels, b);
  }
}

}  // namespace kvlab
