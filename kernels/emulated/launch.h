#pragma once

#include <tuple>

#include "kernels/emulated/device_heap.h"
#include "kernels/emulated/emulator.h"
#include "kernels/emulated/stream.h"

namespace kvlab::emulated {

// What is in padding is whatever was there before, so only compilers that can clear it let arguments be looked at.
template <class P>
void expect_device_argument(const char* name, P argument) {
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&argument);
  expect_no_host_pointer(&argument, sizeof argument, name);
#else
  static_cast<void>(name), static_cast<void>(argument);
#endif
}

// Runs a kernel, or notes it down with these arguments where a graph is recorded. Throws CudaError for an argument that holds an address
// of host memory.
template <class... P>
void launch(const char* name, Dim3 grid, Dim3 block, std::size_t shared_bytes, void (*kernel)(P...), std::tuple<P...> args) {
  std::apply([&](const P&... p) { (expect_device_argument(name, p), ...); }, args);
  enqueue([=] { run_grid(name, grid, block, shared_bytes, [&] { std::apply(kernel, args); }); });
}

}  // namespace kvlab::emulated
