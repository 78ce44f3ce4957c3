#pragma once

#include "kernels/device/cuda/device.cuh"

namespace kvlab {

constexpr int kMostEigenDim = 512;

// Pair k of round `round` of a tournament of n players, n even: every two meet once in n - 1 rounds.
__device__ __forceinline__ int2 tournament_pair(int n, int round, int k) {
  const auto player = [&](int seat) { return seat == 0 ? 0 : 1 + (seat - 1 + round) % (n - 1); };
  const int x = player(k), y = player(n - 1 - k);
  return {x < y ? x : y, x < y ? y : x};
}

// Eigenvalues and eigenvectors of a symmetric matrix [d, d], d <= kMostEigenDim, by one block: cyclic Jacobi rotations (Golub and Van Loan,
// section 8.5), d / 2 that do not meet at a time. The matrix becomes diagonal; column j of `vectors` belongs to its j-th number.
// `shared` [2 * kMostEigenDim + 33] is scratch; all threads call it.
__device__ __forceinline__ void block_symmetric_eigen(double* matrix, double* vectors, int d, double* shared) {
  constexpr int kMostSweeps = 30;
  double *const cosine = shared + 33, *const sine = cosine + kMostEigenDim / 2;
  const int n = d + d % 2, pairs = n / 2, threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const auto at = [d](double* m, int i, int j) -> double& { return m[std::int64_t{i} * d + j]; };
  for (int i = thread; i < d * d; i += threads) vectors[i] = i / d == i % d ? 1.0 : 0.0;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double off = 0, all = 0;
    __syncthreads();
    for (int i = thread; i < d * d; i += threads) {
      const double square = matrix[i] * matrix[i];
      all += square, off += i / d == i % d ? 0.0 : square;
    }
    off = block_sum(off, shared), all = block_sum(all, shared);
    if (!(off > 1e-28 * all)) break;
    for (int round = 0; round < n - 1; ++round) {
      for (int k = thread; k < pairs; k += threads) {
        const int2 p = tournament_pair(n, round, k);
        double c = 1, s = 0;
        if (p.y < d && at(matrix, p.x, p.y) != 0) {
          const double tau = (at(matrix, p.y, p.y) - at(matrix, p.x, p.x)) / (2 * at(matrix, p.x, p.y));
          const double t = (tau >= 0 ? 1.0 : -1.0) / (fabs(tau) + sqrt(1 + tau * tau));
          c = 1 / sqrt(1 + t * t), s = t * c;
        }
        cosine[k] = c, sine[k] = s;
      }
      __syncthreads();
      for (int i = thread; i < pairs * d; i += threads) {  // rows
        const int k = i / d, j = i % d;
        const int2 p = tournament_pair(n, round, k);
        if (p.y >= d) continue;
        const double x = at(matrix, p.x, j), y = at(matrix, p.y, j);
        at(matrix, p.x, j) = cosine[k] * x - sine[k] * y, at(matrix, p.y, j) = sine[k] * x + cosine[k] * y;
      }
      __syncthreads();
      for (int i = thread; i < 2 * pairs * d; i += threads) {  // columns, of the vectors too
        const int k = i % pairs, j = i / pairs % d;
        double* const m = i < pairs * d ? matrix : vectors;
        const int2 p = tournament_pair(n, round, k);
        if (p.y >= d) continue;
        const double x = at(m, j, p.x), y = at(m, j, p.y);
        at(m, j, p.x) = cosine[k] * x - sine[k] * y, at(m, j, p.y) = sine[k] * x + cosine[k] * y;
      }
      __syncthreads();
    }
  }
  __syncthreads();
}

}  // namespace kvlab
