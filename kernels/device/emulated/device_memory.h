#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/cuda/memory.h"

namespace kvlab::emulated {

// Bytes of allocated device memory.
void limit_memory(std::int64_t bytes);
void limit_pinned_memory(std::int64_t bytes);
std::int64_t used_memory();
inline constexpr std::int64_t kGraphBytes = 64 << 10;  // per recorded graph
std::int64_t allocations();
std::int64_t recorded_graphs();
std::int64_t commands();  // launches, copies and fills
void note_command();
// Logs kernels as "name grid block", matrix products by their sizes. Null: stops.
void log_launches(std::vector<std::string>* log);
void note_launch(const std::string& what);
bool logs_launches();

// CPU accesses outside of a DeviceAccess end the program, except in sanitized builds.
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

// Copies to CPU memory arrive when the stream is waited for; other work runs at once.
using Work = std::function<void()>;

// Records `work` if this thread records a graph.
void enqueue(Work work);

// Records this thread's work during its lifetime.
class Recording {
 public:
  Recording();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  [[nodiscard]] std::vector<Work> take();
};

// Throws CudaError while a graph is recorded.
void refuse_in_graph(const char* what);

}  // namespace kvlab::emulated
