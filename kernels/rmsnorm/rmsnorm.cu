#include "kernels/cuda/launch.cuh"
#include "kernels/rmsnorm/rmsnorm_cuda.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256;
constexpr int kHeld = 4;  // vectors of 8 numbers per thread that stay in registers: 8,192 numbers of a row are read once

template <class T>
struct RmsNormArgs {
  const T* in;
  T* residual;
  const T* weight;
  T* out;
  std::int64_t width;
  float epsilon;
};

template <class T>
__device__ __forceinline__ void load8(const T* p, float (&x)[8]) {
  if constexpr (sizeof(T) == 2) {
    unpack8<T>(*reinterpret_cast<const uint4*>(p), x);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = p[i];
  }
}

template <class T>
__device__ __forceinline__ void store8(T* p, const float (&x)[8]) {
  if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<uint4*>(p) = pack8<T>(x);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) p[i] = x[i];
  }
}

// Reads 8 numbers at i, adds the residual and writes the sum back.
template <class T>
__device__ __forceinline__ void take(const RmsNormArgs<T>& a, std::int64_t at, float (&x)[8]) {
  load8(a.in + at, x);
  if (a.residual == nullptr) return;
  float r[8];
  load8(a.residual + at, r);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = to_float(from_float<T>(x[i] + r[i]));
  store8(a.residual + at, x);
}

template <class T>
__device__ __forceinline__ void give(const RmsNormArgs<T>& a, std::int64_t row, std::int64_t i, float scale, float (&x)[8]) {
  float w[8];
  load8(a.weight + i, w);
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] = x[j] * scale * w[j];
  store8(a.out + row + i, x);
}

// One block per token, 16-byte accesses; what does not fit into registers is read again (out of L2). Needs width % 8 == 0.
template <class T>
__global__ void __launch_bounds__(kThreads) rmsnorm_vectors(RmsNormArgs<T> a) {
  KVLAB_SHARED(float, shared, 33);
  const std::int64_t row = blockIdx.x * a.width, step = std::int64_t{kThreads} * 8, first = std::int64_t{threadIdx.x} * 8;
  float held[kHeld][8];
  float sum = 0;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const std::int64_t i = first + h * step;
    if (i >= a.width) break;
    take(a, row + i, held[h]);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += held[h][j] * held[h][j];
  }
  for (std::int64_t i = first + kHeld * step; i < a.width; i += step) {
    float x[8];
    take(a, row + i, x);
    for (int j = 0; j < 8; ++j) sum += x[j] * x[j];
  }
  const float scale = rsqrtf(block_sum(sum, shared) / static_cast<float>(a.width) + a.epsilon);
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const std::int64_t i = first + h * step;
    if (i >= a.width) break;
    give(a, row, i, scale, held[h]);
  }
  for (std::int64_t i = first + kHeld * step; i < a.width; i += step) {
    float x[8];
    load8((a.residual != nullptr ? a.residual : a.in) + row + i, x);
    give(a, row, i, scale, x);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) rmsnorm_any_width(RmsNormArgs<T> a) {
  KVLAB_SHARED(float, shared, 33);
  const std::int64_t row = blockIdx.x * a.width;
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < a.width; i += kThreads) {
    float x = to_float(a.in[row + i]);
    if (a.residual != nullptr) {
      a.residual[row + i] = from_float<T>(x + to_float(a.residual[row + i]));
      x = to_float(a.residual[row + i]);
    }
    sum += x * x;
  }
  const float scale = rsqrtf(block_sum(sum, shared) / static_cast<float>(a.width) + a.epsilon);
  const T* from = a.residual != nullptr ? a.residual : a.in;
  for (std::int64_t i = threadIdx.x; i < a.width; i += kThreads)
    a.out[row + i] = from_float<T>(to_float(from[row + i]) * scale * to_float(a.weight[i]));
}

}  // namespace

void run_cuda(const DeviceRmsNorm& a, CudaContext& cuda) {
  if (a.tokens == 0 || a.width == 0) return;
  for_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const RmsNormArgs<T> args{static_cast<const T*>(a.in),
                              static_cast<T*>(a.residual),
                              static_cast<const T*>(a.weight),
                              static_cast<T*>(a.out),
                              a.width,
                              a.epsilon};
    const LaunchShape launch_shape{dim3(static_cast<unsigned>(a.tokens)), dim3(kThreads)};
    if (a.width % 8 == 0)
      launch("rmsnorm_vectors", cuda, launch_shape, rmsnorm_vectors<T>, args);
    else
      launch("rmsnorm_any_width", cuda, launch_shape, rmsnorm_any_width<T>, args);
  });
}

}  // namespace kvlab
