#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/gpu_memory.h"
#include "kernels/emulated/device_memory.h"

namespace kvlab {

CudaBackend cuda_backend() { return CudaBackend::kEmulated; }
int num_gpus() { return 1; }
std::string why_no_gpu() { return ""; }
void use_gpu(int) {}

// The shape of an H100, with few multiprocessors: grids that are sized by them stay small.
GpuInfo gpu_info(int) { return {"emulated", "none", 4, 90, std::int64_t{1} << 34, 50 << 20, 232448, 1, 1}; }

namespace emulated {

namespace {
std::int64_t limit = std::int64_t{1} << 34, used = 0, made = 0;
}

void limit_memory(std::int64_t bytes) { limit = bytes; }
std::int64_t used_memory() { return used; }
std::int64_t allocations() { return made; }

}  // namespace emulated

namespace cuda {

std::int64_t free_bytes() { return emulated::limit - emulated::used; }

namespace {

void count(std::int64_t bytes) {
  if (bytes > free_bytes())
    throw GpuMemoryError(std::to_string(bytes) + " more bytes were asked for, " + std::to_string(free_bytes()) + " are free", bytes);
  emulated::used += bytes;
  ++emulated::made;
}

}  // namespace

#if defined(KVLAB_SANITIZED)

// Of the exact size: the address sanitizer sees what a kernel reads or writes beside it.
void* allocate(std::int64_t bytes) {
  const auto n = static_cast<std::size_t>(bytes);
  count(bytes);
  void* p = nullptr;
  if (posix_memalign(&p, 256, n) != 0) throw CudaError("out of emulated device memory");
  std::memset(p, 0xFF, n);
  return p;
}

void free(void* p) noexcept {
  emulated::used -= static_cast<std::int64_t>(malloc_usable_size(p));  // the exact size under this sanitizer
  std::free(p);
}

#else

namespace {

// Guards around each allocation: what a kernel writes beside it is noticed when it is freed.
constexpr std::size_t kGuard = 256;
constexpr unsigned char kGuardByte = 0xA5;

void check_guard(const unsigned char* p, const char* side) {
  for (std::size_t i = 0; i < kGuard; ++i) {
    if (p[i] == kGuardByte) continue;
    static_cast<void>(std::fprintf(stderr, "emulated device memory was written %s an allocation\n", side));
    std::abort();
  }
}

}  // namespace

void* allocate(std::int64_t bytes) {
  const auto n = static_cast<std::size_t>(bytes);
  count(bytes);
  void* all = nullptr;
  if (posix_memalign(&all, 256, n + 2 * kGuard) != 0) throw CudaError("out of emulated device memory");
  auto* p = static_cast<unsigned char*>(all);
  std::memset(p, kGuardByte, kGuard);
  std::memcpy(p, &n, sizeof n);
  std::memset(p + kGuard, 0xFF, n);  // NaN: reading what was never written shows
  std::memset(p + kGuard + n, kGuardByte, kGuard);
  return p + kGuard;
}

void free(void* p) noexcept {
  if (p == nullptr) return;
  auto* at = static_cast<unsigned char*>(p);
  std::size_t n = 0;
  std::memcpy(&n, at - kGuard, sizeof n);
  std::memset(at - kGuard, kGuardByte, sizeof n);
  check_guard(at - kGuard, "before");
  check_guard(at + n, "behind");
  emulated::used -= static_cast<std::int64_t>(n);
  std::free(at - kGuard);
}

#endif

void* allocate_pinned(std::int64_t bytes) { return allocate(bytes); }
void free_pinned(void* p) noexcept { free(p); }

void to_device(void* to, const void* from, std::int64_t bytes, CudaStream) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
void to_host(void* to, const void* from, std::int64_t bytes, CudaStream) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
void fill(void* to, int byte, std::int64_t bytes, CudaStream) {
  if (bytes > 0) std::memset(to, byte, static_cast<std::size_t>(bytes));
}
CudaStream make_stream() { return nullptr; }
void destroy(CudaStream) noexcept {}
void synchronize(CudaStream) {}
void synchronize_all() {}

}  // namespace cuda

}  // namespace kvlab
