#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/vectors.cuh"
#include "kernels/model/rmsnorm/rmsnorm_cuda.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256;
constexpr int kMostThreads = 512;  // per shared row
constexpr int kMostHeld = 4;       // 8-number vectors per thread

template <class T>
struct RmsNormArgs {
  const T* in;
  T* residual;
  const T* weight;
  T* out;
  std::int64_t tokens, width;
  float epsilon;
};

// Vector h begins at column first + h * step.
template <class T, int Held, bool kResidual>
struct RowPart {
  float x[Held][8];

  // Reads before it writes. Returns the sum of squares.
  __device__ __forceinline__ float take(const RmsNormArgs<T>& a, std::int64_t row, std::int64_t first, std::int64_t step, bool any) {
    float r[Held][8];
#pragma unroll
    for (int h = 0; h < Held; ++h) {
      const std::int64_t i = first + h * step;
      if (!any || i >= a.width) continue;
      load8(a.in + row + i, x[h]);
      if constexpr (kResidual) load8(a.residual + row + i, r[h]);
    }
    float sum = 0;
#pragma unroll
    for (int h = 0; h < Held; ++h) {
      const std::int64_t i = first + h * step;
      if (!any || i >= a.width) continue;
      if constexpr (kResidual) {
#pragma unroll
        for (int j = 0; j < 8; ++j) x[h][j] += r[h][j];
        round8<T>(x[h]);
        store8(a.residual + row + i, x[h]);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += x[h][j] * x[h][j];
    }
    return sum;
  }

  __device__ __forceinline__ void give(const RmsNormArgs<T>& a, std::int64_t row, std::int64_t first, std::int64_t step, bool any,
                                       float scale) {
#pragma unroll
    for (int h = 0; h < Held; ++h) {
      const std::int64_t i = first + h * step;
      if (!any || i >= a.width) continue;
      float w[8];
      load8(a.weight + i, w);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[h][j] = x[h][j] * scale * w[j];
      store8(a.out + row + i, x[h]);
    }
  }
};

// Lanes (a power of two up to 32) share a row: width <= Lanes * Held * 8.
template <class T, int Lanes, int Held, bool kResidual>
__global__ void __launch_bounds__(kThreads) rmsnorm_narrow(RmsNormArgs<T> a) {
  const std::int64_t token = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / Lanes;
  const std::int64_t row = token * a.width, first = std::int64_t{threadIdx.x % Lanes} * 8;
  const bool any = token < a.tokens;
  RowPart<T, Held, kResidual> part;
  float sum = part.take(a, row, first, Lanes * 8, any);
#pragma unroll
  for (int offset = Lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  part.give(a, row, first, Lanes * 8, any, rsqrtf(sum / static_cast<float>(a.width) + a.epsilon));
}

// A block per row; later numbers are read again.
template <class T, int Held, bool kResidual>
__global__ void __launch_bounds__(kMostThreads, 1) rmsnorm_wide(RmsNormArgs<T> a) {
  KVLAB_SHARED(float, shared, 33);
  const std::int64_t row = blockIdx.x * a.width, step = std::int64_t{blockDim.x} * 8, first = std::int64_t{threadIdx.x} * 8;
  RowPart<T, Held, kResidual> part;
  float sum = part.take(a, row, first, step, true);
  RowPart<T, 1, kResidual> rest;
  for (std::int64_t i = first + Held * step; i < a.width; i += step) sum += rest.take(a, row, i, step, true);
  const float scale = rsqrtf(block_sum(sum, shared) / static_cast<float>(a.width) + a.epsilon);
  part.give(a, row, first, step, true, scale);
  for (std::int64_t i = first + Held * step; i < a.width; i += step) {
    load8((kResidual ? a.residual : a.in) + row + i, rest.x[0]);
    rest.give(a, row, i, step, true, scale);
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

template <bool kResidual, class T>
void launch_vectors(const RmsNormArgs<T>& a, CudaContext& cuda) {
  const auto narrow = [&](int lanes, void (*kernel)(RmsNormArgs<T>)) {
    launch("rmsnorm_narrow", cuda, {dim3(static_cast<unsigned>(ceil_div(a.tokens * lanes, kThreads))), dim3(kThreads)}, kernel, a);
  };
  const auto wide = [&](int threads, void (*kernel)(RmsNormArgs<T>)) {
    launch("rmsnorm_wide", cuda, {dim3(static_cast<unsigned>(a.tokens)), dim3(static_cast<unsigned>(threads))}, kernel, a);
  };
  if (a.width <= 64) return narrow(8, rmsnorm_narrow<T, 8, 1, kResidual>);
  if (a.width <= 128) return narrow(16, rmsnorm_narrow<T, 16, 1, kResidual>);
  if (a.width <= 256) return narrow(32, rmsnorm_narrow<T, 32, 1, kResidual>);
  if (a.width <= 512) return narrow(32, rmsnorm_narrow<T, 32, 2, kResidual>);
  if (a.width <= 1024) return narrow(32, rmsnorm_narrow<T, 32, 4, kResidual>);
  if (a.width <= kThreads * 8) return wide(kThreads, rmsnorm_wide<T, 1, kResidual>);
  if (a.width <= kMostThreads * 8) return wide(kMostThreads, rmsnorm_wide<T, 1, kResidual>);
  if (a.width <= kMostThreads * 16) return wide(kMostThreads, rmsnorm_wide<T, 2, kResidual>);
  return wide(kMostThreads, rmsnorm_wide<T, kMostHeld, kResidual>);
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
                              a.tokens,
                              a.width,
                              a.epsilon};
    if (a.width % 8 != 0 || !aligned16({a.in, a.residual, a.weight, a.out}))
      launch("rmsnorm_any_width", cuda, {dim3(static_cast<unsigned>(a.tokens)), dim3(kThreads)}, rmsnorm_any_width<T>, args);
    else if (a.residual != nullptr)
      launch_vectors<true>(args, cuda);
    else
      launch_vectors<false>(args, cuda);
  });
}

}  // namespace kvlab
