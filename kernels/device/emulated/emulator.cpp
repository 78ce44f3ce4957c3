#include "kernels/device/emulated/emulator.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <string>

#include "base/ceil_div.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/device/emulated/device_memory.h"

#if defined(KVLAB_SANITIZED)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvlab::emulated {

namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr std::size_t kStackStride = kStackBytes + 33 * 64;  // against cache conflicts between stacks
constexpr unsigned kWarp = 32;
constexpr std::size_t kSharedAlign = 1024;
constexpr std::size_t kMostShared = 232448;  // H100
constexpr unsigned kMostGridX = 0x7FFFFFFF;

struct Copy {
  void* to;
  const void* from;
  int bytes, read;
};

struct Fiber {
  ucontext_t context{};
  Dim3 thread;
  bool done = false;
  bool waiting = false;  // for a barrier or lanes of its warp
  const char* what = "";
  const void* in = nullptr;
  void* out = nullptr;
  unsigned mask = 0;
  std::vector<Copy> open;  // since the last commit
  std::deque<std::vector<Copy>> groups;
#if defined(KVLAB_SANITIZED)
  void* fake_stack = nullptr;
#else
  jmp_buf here;
  bool started = false;
#endif
};

struct Stacks {
  std::byte* memory = nullptr;
  std::size_t count = 0;
  std::byte* at(std::size_t i) const { return memory + i * kStackStride; }
  void need(std::size_t n) {
    if (n <= count) return;
    if (memory != nullptr) munmap(memory, count * kStackStride);
    memory = static_cast<std::byte*>(
        mmap(nullptr, n * kStackStride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    count = n;
  }
};

struct Machine {
  const char* kernel = "";
  Dim3 block, grid, block_index;
  std::vector<Fiber> fibers;
  std::vector<std::size_t> order;
  struct Warp {
    unsigned arrived = 0, done = 0;  // lanes that wait at a warp-wide instruction; ended
  };
  std::vector<Warp> warps;
  Stacks stacks;
  ucontext_t scheduler{};
  std::size_t running = 0;
  std::vector<std::byte> shared;  // padded for alignment to kSharedAlign
  const std::function<void()>* body = nullptr;
  std::string failure;
#if defined(KVLAB_SANITIZED)
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
#else
  jmp_buf scheduler_here;
#endif
};

std::vector<std::pair<std::byte*, std::size_t>> static_shared_memory;
thread_local Machine machine;
thread_local Order chosen_order = Order::kForward;
thread_local unsigned most_grid_yz = kMostGridYZ;

Fiber& self() { return machine.fibers[machine.running]; }

// _setjmp and _longjmp need no system calls. The address sanitizer needs swapcontext.
#if defined(KVLAB_SANITIZED)

void leave_fiber(bool for_good) {
  Fiber& f = self();
  __sanitizer_start_switch_fiber(for_good ? nullptr : &f.fake_stack, machine.scheduler_stack, machine.scheduler_stack_bytes);
  swapcontext(&f.context, &machine.scheduler);
  __sanitizer_finish_switch_fiber(f.fake_stack, nullptr, nullptr);
}

#else

void leave_fiber(bool /*for_good*/) {
  if (_setjmp(self().here) == 0) _longjmp(machine.scheduler_here, 1);
}

#endif

void fiber_main() {
#if defined(KVLAB_SANITIZED)
  __sanitizer_finish_switch_fiber(nullptr, &machine.scheduler_stack, &machine.scheduler_stack_bytes);
#endif
  while (true) {  // the next block's thread continues here
    (*machine.body)();
    self().done = true;
    machine.warps[machine.running / kWarp].done |= 1U << machine.running % kWarp;
    leave_fiber(true);
  }
}

#if defined(KVLAB_SANITIZED)

void enter_fiber(std::size_t i) {
  machine.running = i;
  __sanitizer_start_switch_fiber(&machine.scheduler_fake_stack, machine.stacks.at(i), kStackBytes);
  swapcontext(&machine.scheduler, &machine.fibers[i].context);
  __sanitizer_finish_switch_fiber(machine.scheduler_fake_stack, nullptr, nullptr);
}

#else

void enter_fiber(std::size_t i) {
  machine.running = i;
  if (_setjmp(machine.scheduler_here) != 0) return;
  if (machine.fibers[i].started) _longjmp(machine.fibers[i].here, 1);
  machine.fibers[i].started = true;
  swapcontext(&machine.scheduler, &machine.fibers[i].context);
}

#endif

void wait_for(const char* what) {
  self().waiting = true;
  self().what = what;
  leave_fiber(false);
}

// Not under the address sanitizer.
bool can_go_on([[maybe_unused]] unsigned n) {
#if defined(KVLAB_SANITIZED)
  return false;
#else
  return machine.fibers.size() == n && std::all_of(machine.fibers.begin(), machine.fibers.end(), [](const Fiber& f) { return f.done; });
#endif
}

void make_fibers() {
  const unsigned n = machine.block.count();
  machine.warps.assign(ceil_div(n, kWarp), {});
  const bool is_new = !can_go_on(n);
  if (is_new) {
    machine.stacks.need(n);
    machine.fibers.clear();
    machine.fibers.resize(n);
  }
  for (unsigned i = 0; i < n; ++i) {
    Fiber& f = machine.fibers[i];
    f.thread = {i % machine.block.x, i / machine.block.x % machine.block.y, i / machine.block.x / machine.block.y};
    f.done = false;
    if (!is_new) continue;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = machine.stacks.at(i);
    f.context.uc_stack.ss_size = kStackBytes;
    f.context.uc_link = nullptr;
    makecontext(&f.context, fiber_main, 0);
  }
}

void put_in_order(std::vector<std::size_t>& order, std::size_t n, std::mt19937& random) {
  order.resize(n);
  std::iota(order.begin(), order.end(), 0);
  if (chosen_order == Order::kBackward) std::reverse(order.begin(), order.end());
  if (chosen_order == Order::kShuffled) std::shuffle(order.begin(), order.end(), random);
}

// If all running threads wait.
void release_block() {
  for (const Fiber& f : machine.fibers)
    if (!f.done && (!f.waiting || f.mask != 0)) return;
  for (Fiber& f : machine.fibers) f.waiting = false;
}

std::string stuck() {
  std::string text = std::string("kernel ") + machine.kernel + ": threads wait for ever; block " + std::to_string(machine.block_index.x) +
                     "," + std::to_string(machine.block_index.y) + "," + std::to_string(machine.block_index.z) + ":";
  int named = 0;
  for (std::size_t i = 0; i < machine.fibers.size() && named < 8; ++i) {
    if (machine.fibers[i].done) continue;
    text += " thread " + std::to_string(i) + " at " + machine.fibers[i].what + ";", ++named;
  }
  return text;
}

// Returns true at the fiber's end.
bool advance(std::size_t i) {
  enter_fiber(i);
  if (!machine.failure.empty()) throw CudaError(machine.failure);
  Fiber& f = machine.fibers[i];
  if (f.done && (!f.open.empty() || !f.groups.empty())) f.groups.clear(), f.open.clear();
  return f.done;
}

// Returns the number of threads that ended.
std::size_t run_warp(std::size_t warp) {
  const std::size_t first = warp * kWarp, lanes = std::min<std::size_t>(kWarp, machine.fibers.size() - first);
  std::size_t done = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t l = 0; l < lanes; ++l) {
      const std::size_t i = first + (chosen_order == Order::kBackward ? lanes - 1 - l : l);
      if (machine.fibers[i].done || machine.fibers[i].waiting) continue;
      moved = true;
      done += advance(i) ? 1 : 0;
    }
  }
  return done;
}

void run_block(std::mt19937& random) {
  make_fibers();
  std::size_t done = 0;
  while (done < machine.fibers.size()) {
    put_in_order(machine.order, machine.fibers.size(), random);
    bool moved = false;
    for (const std::size_t i : machine.order) {
      if (machine.fibers[i].done || machine.fibers[i].waiting) continue;
      moved = true;
      done += chosen_order == Order::kShuffled ? (advance(i) ? 1 : 0) : run_warp(i / kWarp);
    }
    release_block();
    if (!moved && std::all_of(machine.fibers.begin(), machine.fibers.end(), [](const Fiber& f) { return f.done || f.waiting; }) &&
        done < machine.fibers.size())
      throw CudaError(stuck());
  }
}

// NaN in every float, half and bfloat16.
void poison_shared() {
  std::memset(machine.shared.data(), 0xFF, machine.shared.size());
  for (const auto& [memory, bytes] : static_shared_memory) std::memset(memory, 0xFF, bytes);
}

}  // namespace

void note_shared(std::byte* memory, std::size_t bytes) {
  static_shared_memory.emplace_back(memory, bytes);
  std::memset(memory, 0xFF, bytes);
}

void set_order(Order order) { chosen_order = order; }
void limit_grid_yz(unsigned blocks) { most_grid_yz = blocks; }

const Dim3& thread_index() { return self().thread; }
const Dim3& block_index() { return machine.block_index; }
const Dim3& block_shape() { return machine.block; }
const Dim3& grid_shape() { return machine.grid; }
int lane() { return static_cast<int>(machine.running % kWarp); }
std::byte* dynamic_shared() {
  const auto at = reinterpret_cast<std::uintptr_t>(machine.shared.data());
  return machine.shared.data() + ((kSharedAlign - at % kSharedAlign) % kSharedAlign);
}

void sync_block() { wait_for("__syncthreads"); }

void warp_instruction(const char* name, unsigned mask, const void* in, void* out, WarpWork work) {
  const std::size_t first = machine.running / kWarp * kWarp, lanes = std::min<std::size_t>(kWarp, machine.fibers.size() - first);
  const unsigned own = 1U << machine.running % kWarp;
  const auto refuse = [](const std::string& what) {
    machine.failure = std::string("kernel ") + machine.kernel + ": " + what;
    leave_fiber(false);
  };
  if ((mask & own) == 0) return refuse(std::string("a lane outside the mask of ") + name);
  if (lanes < kWarp && mask >> lanes != 0) return refuse(std::string("mask of ") + name + " names lanes that the block does not have");
  Fiber& me = self();
  me.what = name, me.in = in, me.out = out, me.mask = mask;
  Machine::Warp& warp = machine.warps[machine.running / kWarp];
  // Ended lanes count as arrived at a barrier.
  const unsigned left = work == nullptr ? warp.done : 0;
  warp.arrived |= own;
  if ((mask & ~(warp.arrived | left)) != 0) return wait_for(name);
  std::array<const void*, kWarp> inputs{};
  std::array<void*, kWarp> outputs{};
  for (unsigned l = 0; l < lanes; ++l) {
    if (((mask & ~left) >> l & 1U) == 0) continue;
    const Fiber& f = machine.fibers[first + l];
    if (f.mask != mask || (f.what != name && std::strcmp(f.what, name) != 0))
      return refuse(std::string("lanes of a warp meet at ") + name + " and " + f.what + " or with different masks");
    inputs[l] = f.in, outputs[l] = f.out;
  }
  if (work != nullptr) work(inputs, outputs, mask);
  warp.arrived &= ~mask;
  for (unsigned l = 0; l < lanes; ++l) {
    if ((mask >> l & 1U) == 0) continue;
    machine.fibers[first + l].waiting = false;
    machine.fibers[first + l].mask = 0;
  }
}

void copy_async(void* shared, const void* global, int bytes, int bytes_read) { self().open.push_back({shared, global, bytes, bytes_read}); }

void commit_copies() { self().groups.push_back(std::exchange(self().open, {})); }

void wait_copies(int groups_left) {
  auto& groups = self().groups;
  while (static_cast<int>(groups.size()) > groups_left) {
    for (const Copy& c : groups.front()) {
      if (c.read > 0) std::memcpy(c.to, c.from, static_cast<std::size_t>(c.read));
      std::memset(static_cast<std::byte*>(c.to) + c.read, 0, static_cast<std::size_t>(c.bytes - c.read));
    }
    groups.pop_front();
  }
}

void run_grid(const char* name, Dim3 grid, Dim3 block, std::size_t shared_bytes, const std::function<void()>& body) {
  machine.kernel = name, machine.grid = grid, machine.block = block, machine.body = &body;
  machine.failure.clear();
  if (logs_launches())
    note_launch(name + (" " + std::to_string(grid.x)) + "," + std::to_string(grid.y) + "," + std::to_string(grid.z) + " " +
                std::to_string(block.count()));
  if (grid.x > kMostGridX || std::max(grid.y, grid.z) > most_grid_yz)
    throw CudaError(std::string("kernel ") + name + ": a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
                    std::to_string(grid.z) + " blocks; at most 2^31 - 1 in x and " + std::to_string(most_grid_yz) + " in y and z");
  if (shared_bytes > kMostShared)
    throw CudaError(std::string("kernel ") + name + ": " + std::to_string(shared_bytes) + " bytes of shared memory; a block has at most " +
                    std::to_string(kMostShared));
  if (block.count() > 1024)
    throw CudaError(std::string("kernel ") + name + ": " + std::to_string(block.count()) + " threads in a block; at most 1024");
  machine.shared = std::vector<std::byte>(shared_bytes + kSharedAlign - 1);
  std::mt19937 random(7);  // NOLINT: the same order in every run
  std::vector<std::size_t> blocks;
  put_in_order(blocks, std::size_t{grid.x} * grid.y * grid.z, random);
  for (const std::size_t i : blocks) {
    const auto at = static_cast<unsigned>(i);
    machine.block_index = {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y};
    poison_shared();
    run_block(random);
  }
}

}  // namespace kvlab::emulated
