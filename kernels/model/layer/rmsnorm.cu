#include "kernels/device/cuda/launch.cuh"
#include "kernels/model/layer/layer.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256;
constexpr int kMostThreads = 512;  // per shared row
constexpr int kMostHeld = 4;       // 8-number vectors per thread

// Vector h is at first + h * step.
template <class T, int Held, bool kResidual>
struct RowPart {
  float x[Held][8];

  // Reads before it writes. Returns the sum of squares.
  __device__ __forceinline__ float take(const RmsNorm& a, std::int64_t row, std::int64_t first, std::int64_t step, bool any) {
    float r[Held][8];
#pragma unroll
    for (int h = 0; h < Held; ++h) {
      const std::int64_t i = first + h * step;
      if (!any || i >= a.width) continue;
      load8(static_cast<const T*>(a.in) + row + i, x[h]);
      if constexpr (kResidual) load8(static_cast<const T*>(a.residual) + row + i, r[h]);
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
        store8(static_cast<T*>(a.residual) + row + i, x[h]);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += x[h][j] * x[h][j];
    }
    return sum;
  }

  __device__ __forceinline__ void give(const RmsNorm& a, std::int64_t row, std::int64_t first, std::int64_t step, bool any, float scale) {
#pragma unroll
    for (int h = 0; h < Held; ++h) {
      const std::int64_t i = first + h * step;
      if (!any || i >= a.width) continue;
      float w[8];
      load8(static_cast<const T*>(a.weight) + i, w);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[h][j] = x[h][j] * scale * w[j];
      store8(static_cast<T*>(a.out) + row + i, x[h]);
    }
  }
};

// Lanes (a power of two up to 32) share a row: width <= Lanes * Held * 8.
template <class T, int Lanes, int Held, bool kResidual>
__global__ void __launch_bounds__(kThreads) rmsnorm_narrow(RmsNorm a) {
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
__global__ void __launch_bounds__(kMostThreads, 1) rmsnorm_wide(RmsNorm a) {
  KVLAB_SHARED(float, shared, 33);
  const std::int64_t row = blockIdx.x * a.width, step = std::int64_t{blockDim.x} * 8, first = std::int64_t{threadIdx.x} * 8;
  RowPart<T, Held, kResidual> part;
  float sum = part.take(a, row, first, step, true);
  RowPart<T, 1, kResidual> rest;
  for (std::int64_t i = first + Held * step; i < a.width; i += step) sum += rest.take(a, row, i, step, true);
  const float scale = rsqrtf(block_sum(sum, shared) / static_cast<float>(a.width) + a.epsilon);
  part.give(a, row, first, step, true, scale);
  for (std::int64_t i = first + Held * step; i < a.width; i += step) {
    load8(static_cast<const T*>(kResidual ? a.residual : a.in) + row + i, rest.x[0]);
    rest.give(a, row, i, step, true, scale);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) rmsnorm_any_width(RmsNorm a) {
  KVLAB_SHARED(float, shared, 33);
  const std::int64_t row = blockIdx.x * a.width;
  T* const residual = a.residual != nullptr ? static_cast<T*>(a.residual) + row : nullptr;
  const T* const in = static_cast<const T*>(a.in) + row;
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < a.width; i += kThreads) {
    float x = to_float(in[i]);
    if (residual != nullptr) {
      residual[i] = from_float<T>(x + to_float(residual[i]));
      x = to_float(residual[i]);
    }
    sum += x * x;
  }
  const float scale = rsqrtf(block_sum(sum, shared) / static_cast<float>(a.width) + a.epsilon);
  const T *const from = residual != nullptr ? residual : in, *const weight = static_cast<const T*>(a.weight);
  for (std::int64_t i = threadIdx.x; i < a.width; i += kThreads)
    static_cast<T*>(a.out)[row + i] = from_float<T>(to_float(from[i]) * scale * to_float(weight[i]));
}

template <bool kResidual, class T>
void launch_vectors(const RmsNorm& a, CudaContext& cuda) {
  const auto narrow = [&](int lanes, void (*kernel)(RmsNorm)) {
    launch("rmsnorm_narrow", cuda, blocks_of(ceil_div(a.tokens * lanes, kThreads), kThreads), kernel, a);
  };
  const auto wide = [&](int threads, void (*kernel)(RmsNorm)) { launch("rmsnorm_wide", cuda, blocks_of(a.tokens, threads), kernel, a); };
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

void run_cuda(const RmsNorm& a, CudaContext& cuda) {
  if (a.tokens == 0 || a.width == 0) return;
  for_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    if (a.width % 8 != 0 || !aligned16({a.in, a.residual, a.weight, a.out}))
      launch("rmsnorm_any_width", cuda, blocks_of(a.tokens, kThreads), rmsnorm_any_width<T>, a);
    else if (a.residual != nullptr)
      launch_vectors<true, T>(a, cuda);
    else
      launch_vectors<false, T>(a, cuda);
  });
}

}  // namespace kvlab
