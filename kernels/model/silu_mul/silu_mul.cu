#include <algorithm>

#include "kernels/device/cuda/device.cuh"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/model/silu_mul/silu_mul_cuda.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256;
constexpr int kVectors = 2;  // per thread: four 16-byte loads in flight

// 0 if e^-x is infinite. Fast exp and division suffice for 16 bits.
template <class T>
__device__ __forceinline__ float silu(float x) {
  if constexpr (sizeof(T) == 2)
    return __fdividef(x, 1.0F + __expf(-x));
  else
    return x / (1.0F + expf(-x));
}

template <class T, bool kGated>
__global__ void __launch_bounds__(kThreads) silu_mul_vectors(DeviceSiluMul a) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * kVectors * kThreads + threadIdx.x) * 8;
  for (std::int64_t token = blockIdx.y; token < a.tokens; token += gridDim.y) {
    float gate[kVectors][8], up[kVectors][8];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t i = first + v * (kThreads * 8);
      if (i >= a.width) continue;
      load8(static_cast<const T*>(a.gate) + token * a.in_stride + i, gate[v]);
      if constexpr (kGated) load8(static_cast<const T*>(a.up) + token * a.in_stride + i, up[v]);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t i = first + v * (kThreads * 8);
      if (i >= a.width) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) gate[v][j] = kGated ? silu<T>(gate[v][j]) * up[v][j] : silu<T>(gate[v][j]);
      store8(static_cast<T*>(a.out) + token * a.width + i, gate[v]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) silu_mul_any(DeviceSiluMul a) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.width) return;
  for (std::int64_t token = blockIdx.y; token < a.tokens; token += gridDim.y) {
    const auto in = [&](const void* x) { return load_float(static_cast<const T*>(x) + token * a.in_stride + i); };
    const float gate = silu<T>(in(a.gate));
    store_float(static_cast<T*>(a.out) + token * a.width + i, a.up != nullptr ? gate * in(a.up) : gate);
  }
}

}  // namespace

void run_cuda(const DeviceSiluMul& given, CudaContext& cuda) {
  DeviceSiluMul a = given;
  if (a.tokens == 0 || a.width == 0) return;
  if (a.in_stride == 0 || a.in_stride == a.width) a.width = a.in_stride = a.tokens * a.width, a.tokens = 1;  // one long row
  const bool vectors = a.width % 8 == 0 && a.in_stride % 8 == 0 && aligned16({a.gate, a.up, a.out});
  const dim3 grid = grid_of(ceil_div(a.width, vectors ? kThreads * kVectors * 8 : kThreads), std::min(a.tokens, kMostGridY));
  for_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = !vectors ? silu_mul_any<T> : a.up != nullptr ? silu_mul_vectors<T, true> : silu_mul_vectors<T, false>;
    launch(vectors ? "silu_mul_vectors" : "silu_mul_any", cuda, blocks_of(grid, kThreads), kernel, a);
  });
}

}  // namespace kvlab
