#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>

#include "kernels/device/emulated/device_memory.h"

// CUDA kernels on the CPU: a fiber per thread, block after block. Fibers switch only at barriers and warp-wide instructions. Throws, with
// the kernel's name, for barriers that some threads never reach, warp-wide instructions that lanes of the mask join differently, and grids
// that CUDA refuses. Not modelled: memory ordering, 16-byte alignment in shared memory, time.
namespace kvlab::emulated {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Dim3() = default;
  constexpr Dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}  // NOLINT: CUDA's dim3 converts too
  [[nodiscard]] constexpr unsigned count() const { return x * y * z; }
};

// Warp after warp, from the first or the last; or interleaved at warp-wide instructions. Blocks also.
enum class Order : std::uint8_t { kForward, kBackward, kShuffled };
void set_order(Order order);

constexpr unsigned kMostGridYZ = 65535;
void limit_grid_yz(unsigned blocks);

const Dim3& thread_index();
const Dim3& block_index();
const Dim3& block_shape();
const Dim3& grid_shape();
int lane();

void sync_block();

// Waits for all lanes of `mask` with this `name`, then calls work(inputs, outputs) once; pointers outside the mask are null.
using WarpWork = void (*)(const std::array<const void*, 32>& in, const std::array<void*, 32>& out, unsigned mask);
void warp_instruction(const char* name, unsigned mask, const void* in, void* out, WarpWork work);

// cp.async of up to 16 bytes; data arrive in wait_copies().
void copy_async(void* shared, const void* global, int bytes, int bytes_read);
void commit_copies();
void wait_copies(int groups_left);

// Filled with NaN now and before every block.
void note_shared(std::byte* memory, std::size_t bytes);

// For the running block.
std::byte* dynamic_shared();

void run_grid(const char* name, Dim3 grid, Dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

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
