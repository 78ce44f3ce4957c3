#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

// Runs the sources of kernels/device/cuda on the CPU, so that their logic is tested without a GPU: one fiber per CUDA thread, block after
// block on the calling thread. Every barrier and every warp-wide instruction is a point where fibers switch. In between a fiber runs alone,
// so a race depends only on the order of fibers: a test runs a kernel under several orders and compares (Order). Refused, with the kernel's
// name: barriers that some threads never reach, warp-wide instructions that lanes of the mask do not join or join with different ones;
// grids that CUDA refuses. Not modelled: memory ordering, alignment of 16-byte accesses to shared memory beyond what the CPU checks, time.
namespace kvlab::emulated {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Dim3() = default;
  constexpr Dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}  // NOLINT: CUDA's dim3 converts too
  [[nodiscard]] constexpr unsigned count() const { return x * y * z; }
};

// Order in which the threads of a block run between two barriers: warp after warp, from the first or from the last, each as far as it gets
// without the others; or all side by side from one warp-wide instruction to the next, in a new order each time. Blocks run in the same kind
// of order.
enum class Order : std::uint8_t { kForward, kBackward, kShuffled };
void set_order(Order order);

// Blocks that a grid may have in y and in z: CUDA's limit, or fewer.
constexpr unsigned kMostGridYZ = 65535;
void limit_grid_yz(unsigned blocks);

// Indices and shapes of the running fiber.
const Dim3& thread_index();
const Dim3& block_index();
const Dim3& block_shape();
const Dim3& grid_shape();
int lane();

void sync_block();
int sync_block_count(int predicate);  // threads whose predicate holds
// Threads [begin, begin + count) of the block's numbering that share barrier `id`, as bar.sync does.
void sync_named(int id, int count);

// One warp-wide instruction: suspends until all lanes of `mask` have arrived with the same `name`, then calls
// work(inputs, outputs) once, with the lanes' pointers (null outside the mask).
using WarpWork = void (*)(const std::array<const void*, 32>& in, const std::array<void*, 32>& out, unsigned mask);
void warp_instruction(const char* name, unsigned mask, const void* in, void* out, WarpWork work);

// cp.async: copies 16 or fewer bytes, which arrive when they are waited for.
void copy_async(void* shared, const void* global, int bytes, int bytes_read);
void commit_copies();
void wait_copies(int groups_left);

// Registers static shared memory once: it is filled with NaN then and before every block.
void note_shared(std::byte* memory, std::size_t bytes);

// Bytes of dynamic shared memory of the running block.
std::byte* dynamic_shared();

// Runs body for every thread of every block. Shared memory is filled with NaN before each block.
void run_grid(const char* name, Dim3 grid, Dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

}  // namespace kvlab::emulated
