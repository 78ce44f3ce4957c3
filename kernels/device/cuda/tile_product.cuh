#pragma once

#include "kernels/device/cuda/device.cuh"

namespace kvlab {

// z [kTileSide, kTileSide] += A [kTileSide, depth] B^T in fp32. Thread t: rows from t / 16 * 4, columns from t % 16 * 4. Neighbouring
// threads load neighbouring k, or rows. `shared` [kTileFloats / 4]: scratch; all threads call it.
constexpr int kTileSide = 64, kTileThreads = 256, kTileDepth = 32, kTileStride = kTileSide + 4, kTileFloats = 2 * kTileDepth * kTileStride;

template <bool AcrossRows, class A, class B>
__device__ __forceinline__ void add_tile_product(float (&z)[4][4], int depth, float4* shared, A a, B b) {
  float *const of_a = reinterpret_cast<float*>(shared), *const of_b = of_a + kTileDepth * kTileStride;
  const int row0 = static_cast<int>(threadIdx.x) / 16 * 4, column0 = static_cast<int>(threadIdx.x) % 16 * 4;
  for (int k0 = 0; k0 < depth; k0 += kTileDepth) {
    __syncthreads();  // the previous tile has been read
#pragma unroll 4
    for (int i = threadIdx.x; i < kTileSide * kTileDepth; i += kTileThreads) {
      const int row = AcrossRows ? i % kTileSide : i / kTileDepth, k = AcrossRows ? i / kTileSide : i % kTileDepth;
      of_a[k * kTileStride + row] = k0 + k < depth ? a(row, k0 + k) : 0.0F;
      of_b[k * kTileStride + row] = k0 + k < depth ? b(row, k0 + k) : 0.0F;
    }
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < kTileDepth; ++k) {
      const float4 x4 = *reinterpret_cast<const float4*>(of_a + k * kTileStride + row0);
      const float4 y4 = *reinterpret_cast<const float4*>(of_b + k * kTileStride + column0);
      const float x[4] = {x4.x, x4.y, x4.z, x4.w}, y[4] = {y4.x, y4.y, y4.z, y4.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) z[i][j] += x[i] * y[j];
    }
  }
}

}  // namespace kvlab
