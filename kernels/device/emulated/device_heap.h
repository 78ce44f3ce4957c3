#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// CPU accesses outside of a DeviceAccess end the program, except in sanitized builds.
namespace kvlab::emulated {

// Scope of GPU work (kernel, copy). May be nested.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// Aligned to 256, filled with NaN; null if out of addresses.
void* take_device_memory(std::int64_t bytes);
// Returns the size. Ends the program if a guard was overwritten.
std::int64_t give_device_memory(void* p) noexcept;

// By address, readable in a DeviceAccess. Empty in sanitized builds.
std::vector<std::span<unsigned char>> device_memory_in_use();

void* take_pinned_memory(std::int64_t bytes);
std::int64_t give_pinned_memory(void* p) noexcept;  // returns the size

// Throw CudaError if kernels or copies cannot use p; `what` begins the message.
void expect_on_gpu(const void* p, const char* what);
void expect_on_host(const void* p, const char* what);  // any but device memory
// Throws CudaError for an address of unpinned CPU memory.
void expect_no_host_pointer(const void* argument, std::size_t bytes, const char* kernel);

}  // namespace kvlab::emulated
