#pragma once

#include <tuple>

#include "kernels/device/emulated/device_memory.h"
#include "kernels/device/emulated/emulator.h"

namespace kvlab::emulated {

// Needs a compiler that can clear padding.
template <class P>
void expect_device_argument(const char* name, P argument) {
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&argument);
  expect_no_host_pointer(&argument, sizeof argument, name);
#else
  static_cast<void>(name), static_cast<void>(argument);
#endif
}

// Runs or records a kernel. Throws CudaError for arguments with an address of unpinned CPU memory.
template <class... P>
void launch(const char* name, Dim3 grid, Dim3 block, std::size_t shared_bytes, void (*kernel)(P...), std::tuple<P...> args) {
  std::apply([&](const P&... p) { (expect_device_argument(name, p), ...); }, args);
  enqueue([=] { run_grid(name, grid, block, shared_bytes, [&] { std::apply(kernel, args); }); });
}

}  // namespace kvlab::emulated
