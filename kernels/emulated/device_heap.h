#pragma once

#include <cstddef>
#include <cstdint>

// The emulated GPU's memory: addresses of its own, which the host can neither read nor write but within a DeviceAccess. Host code that
// follows a pointer into them ends the program, as it does beside a GPU, and stderr says why. In a sanitized build device memory comes
// from the sanitizer's allocator and is not closed to the host.
namespace kvlab::emulated {

// What the GPU itself does: a kernel, a copy. May be nested.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// `bytes` bytes, on a multiple of 256, filled with NaN. Null where no addresses are left.
void* take_device_memory(std::int64_t bytes);
// How many bytes they were. Ends the program where something was written right before or behind them.
std::int64_t give_device_memory(void* p) noexcept;

// Host memory that kernels may use.
void* take_pinned_memory(std::int64_t bytes);
std::int64_t give_pinned_memory(void* p) noexcept;  // how many bytes they were

// Throw CudaError where p is not what a kernel or a copy can use there; `what` begins the message.
void expect_on_gpu(const void* p, const char* what);   // device or pinned memory
void expect_on_host(const void* p, const char* what);  // any but device memory
// Of the words of a kernel's argument, none is an address of host memory that is not pinned.
void expect_no_host_pointer(const void* argument, std::size_t bytes, const char* kernel);

}  // namespace kvlab::emulated
