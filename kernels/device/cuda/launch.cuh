#pragma once

#include <string>
#include <type_traits>

#include "base/ceil_div.h"
#include "kernels/device/cuda/device.cuh"
#include "kernels/device/cuda/memory.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "kernels/device/emulated/emulator.h"
#endif

namespace kvlab {

constexpr std::int64_t kMostGridY = 65535;  // in y and z; x has 2^31 - 1

struct LaunchShape {
  dim3 grid, block;
  std::size_t shared_bytes = 0;  // dynamic
};
inline dim3 grid_of(std::int64_t x, std::int64_t y) { return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)); }
inline LaunchShape blocks_of(dim3 grid, std::int64_t threads, std::int64_t shared_bytes = 0) {
  return {grid, dim3(static_cast<unsigned>(threads)), static_cast<std::size_t>(shared_bytes)};
}
inline LaunchShape blocks_of(std::int64_t blocks, std::int64_t threads, std::int64_t shared_bytes = 0) {
  return blocks_of(dim3(static_cast<unsigned>(blocks)), threads, shared_bytes);
}
// f(std::integral_constant) of the N that is `value`, if any.
template <auto... N, class T, class F>
void for_value(T value, F&& f) {
  const auto call = [&](auto n) {
    if (value == decltype(n)::value) f(n);
  };
  (call(std::integral_constant<decltype(N), N>{}), ...);
}

#ifdef __CUDACC__
namespace cuda {
// The default limit is 48 KiB in all.
constexpr std::size_t kUnaskedSharedBytes = 16 * 1024;  // dynamic: static memory is at most 32 KiB
void allow_shared(const void* kernel, std::size_t bytes);
void check_launch(const char* name);
}  // namespace cuda
#endif

// Asynchronous; zero blocks do nothing. Throws CudaError with `name`.
template <class... P, class... A>
void launch(const char* name, CudaContext& cuda, const LaunchShape& shape, void (*kernel)(P...), const A&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
#ifdef __CUDACC__
  if (shape.shared_bytes > cuda::kUnaskedSharedBytes) cuda::allow_shared(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  kernel<<<shape.grid, shape.block, shape.shared_bytes, cuda.stream()>>>(args...);
  cuda::check_launch(name);
#else
  static_cast<void>(cuda);
  emulated::launch(name, shape.grid, shape.block, shape.shared_bytes, kernel, std::tuple<P...>(args...));
#endif
}

// for_type(type, [&](auto zero) { using T = decltype(zero); ... }).
template <class F>
void for_type(ElementType type, F&& f) {
  if (type == ElementType::kF32) f(float{});
  if (type == ElementType::kF16) f(f16{});
  if (type == ElementType::kBf16) f(bf16{});
}

}  // namespace kvlab
