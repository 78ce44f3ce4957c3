#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

enum class DeviceKind : std::uint8_t { kCpu, kGpu };

// The CPU (run_cpu) or a GPU (run_cuda).
class TimedDevice {
 public:
  virtual ~TimedDevice() = default;
  [[nodiscard]] virtual DeviceKind kind() const = 0;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::int64_t cache_bytes() const = 0;  // last level
  [[nodiscard]] virtual std::int64_t memory_bytes() const = 0;
  [[nodiscard]] virtual CudaContext* cuda() { return nullptr; }

  // Aligned to 256 bytes. On a GPU, allocation and copies throw CudaError.
  virtual std::shared_ptr<void> allocate(std::int64_t bytes) = 0;
  virtual void to_device(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void to_host(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;  // within the device; a GPU does not wait
  virtual void synchronize() = 0;

  // run(first), ..., run(first + calls - 1) in sequence; a GPU's calls are queued before the first begins.
  struct Sample {
    double seconds = 0;    // of all calls
    double clock_ghz = 0;  // just before; 0: unknown
  };
  virtual Sample time(const std::function<void(std::int64_t)>& run, std::int64_t first, std::int64_t calls) = 0;
};

std::unique_ptr<TimedDevice> make_cpu_device();
std::unique_ptr<TimedDevice> make_gpu_device(int gpu);  // throws CudaError if there is none

}  // namespace kvlab
