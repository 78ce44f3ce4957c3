#pragma once

#include <cstddef>
#include <cstdint>

// The emulated GPU's memory: separate addresses that CPU code can read and write only within a DeviceAccess. Otherwise an access ends the
// program, as with a real GPU, and stderr says why. In a sanitized build device memory comes from the sanitizer's allocator and CPU code
// can access it.
namespace kvlab::emulated {

// Scope of work done by the GPU itself: a kernel, a copy. May be nested.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// Allocates `bytes` bytes at a multiple of 256, filled with NaN; null if no addresses are left.
void* take_device_memory(std::int64_t bytes);
// Frees them and returns their size. Ends the program if memory right before or after them was written.
std::int64_t give_device_memory(void* p) noexcept;

// CPU memory that kernels may use.
void* take_pinned_memory(std::int64_t bytes);
std::int64_t give_pinned_memory(void* p) noexcept;  // returns their size

// Throw CudaError if a kernel or a copy cannot use p there; `what` begins the message.
void expect_on_gpu(const void* p, const char* what);   // device or pinned memory
void expect_on_host(const void* p, const char* what);  // any but device memory
// Throws CudaError if a word of a kernel's argument is an address of unpinned CPU memory.
void expect_no_host_pointer(const void* argument, std::size_t bytes, const char* kernel);

}  // namespace kvlab::emulated
