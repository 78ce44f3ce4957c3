#pragma once

#include "kernels/device/cuda/device.cuh"

namespace kvlab {

constexpr int kMostEigenDim = 512;

// n players (even) all meet in n - 1 rounds.
__device__ __forceinline__ int2 tournament_pair(int n, int round, int k) {
  const auto player = [&](int seat) { return seat == 0 ? 0 : 1 + (seat - 1 + round) % (n - 1); };
  const int x = player(k), y = player(n - 1 - k);
  return {x < y ? x : y, x < y ? y : x};
}

// All threads call, with barriers in between.
struct JacobiRound {
  int d, players, round;
  double *cosine, *sine;  // [players / 2]

  __device__ __forceinline__ int2 pair(int k) const { return tournament_pair(players, round, k); }
  __device__ __forceinline__ double& at(double* m, int i, int j) const { return m[std::int64_t{i} * d + j]; }

  // Rotations that zero the pairs' elements.
  __device__ __forceinline__ void choose(double* matrix) const {
    for (int k = threadIdx.x; k < players / 2; k += blockDim.x) {
      const int2 p = pair(k);
      double c = 1, s = 0;
      if (p.y < d && at(matrix, p.x, p.y) != 0) {
        const double tau = (at(matrix, p.y, p.y) - at(matrix, p.x, p.x)) / (2 * at(matrix, p.x, p.y));
        const double t = (tau >= 0 ? 1.0 : -1.0) / (fabs(tau) + sqrt(1 + tau * tau));
        c = 1 / sqrt(1 + t * t), s = t * c;
      }
      cosine[k] = c, sine[k] = s;
    }
  }
  __device__ __forceinline__ void rotate(int k, double& to_x, double& to_y) const {
    const double x = to_x, y = to_y;
    to_x = cosine[k] * x - sine[k] * y, to_y = sine[k] * x + cosine[k] * y;
  }
  __device__ __forceinline__ void rotate_rows(double* matrix) const {
    for (int i = threadIdx.x; i < players / 2 * d; i += blockDim.x) {
      const int k = i / d, j = i % d;
      const int2 p = pair(k);
      if (p.y < d) rotate(k, at(matrix, p.x, j), at(matrix, p.y, j));
    }
  }
  __device__ __forceinline__ void rotate_columns(double* matrix, double* vectors) const {
    const int pairs = players / 2;
    for (int i = threadIdx.x; i < 2 * pairs * d; i += blockDim.x) {
      const int k = i % pairs, j = i / pairs % d;
      double* const m = i < pairs * d ? matrix : vectors;
      const int2 p = pair(k);
      if (p.y < d) rotate(k, at(m, j, p.x), at(m, j, p.y));
    }
  }
};

// Symmetric [d, d], d <= kMostEigenDim, by one block: cyclic Jacobi rotations (Golub and Van Loan, section 8.5). The matrix becomes
// diagonal; column j of `vectors` belongs to element j. `shared` [2 * kMostEigenDim + 33]: scratch.
__device__ __forceinline__ void block_symmetric_eigen(double* matrix, double* vectors, int d, double* shared) {
  constexpr int kMostSweeps = 30;
  const int players = d + d % 2, threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
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
    for (int round = 0; round < players - 1; ++round) {
      const JacobiRound jacobi{d, players, round, shared + 33, shared + 33 + kMostEigenDim / 2};
      jacobi.choose(matrix);
      __syncthreads();
      jacobi.rotate_rows(matrix);
      __syncthreads();
      jacobi.rotate_columns(matrix, vectors);
      __syncthreads();
    }
  }
  __syncthreads();
}

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
