#include <algorithm>
#include <chrono>

#include "calibrate/cases/kernel_case.h"
#include "kernels/device/cuda/events.h"

namespace kvlab {

namespace {

class GpuDevice final : public TimedDevice {
 public:
  explicit GpuDevice(int gpu) : cuda_(gpu) {}

  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kGpu; }
  [[nodiscard]] std::string name() const override { return cuda_.gpu().name; }
  [[nodiscard]] std::int64_t cache_bytes() const override { return cuda_.gpu().l2_bytes; }
  [[nodiscard]] std::int64_t memory_bytes() const override { return cuda_.gpu().memory_bytes; }
  [[nodiscard]] CudaContext* cuda() override { return &cuda_; }

  std::shared_ptr<void> allocate(std::int64_t bytes) override { return {cuda::allocate(bytes), cuda::free}; }
  void to_device(void* to, const void* from, std::int64_t bytes) override {
    cuda::to_device(to, from, bytes, cuda_.stream());
    cuda_.synchronize();
  }
  void to_host(void* to, const void* from, std::int64_t bytes) override {
    cuda::to_host(to, from, bytes, cuda_.stream());
    cuda_.synchronize();
  }
  void copy(void* to, const void* from, std::int64_t bytes) override { cuda::copy_on_device(to, from, bytes, cuda_.stream()); }
  void synchronize() override { cuda_.synchronize(); }

  // Holds the GPU while the CPU queues the calls, by the previous sample's queueing time.
  Sample time(const std::function<void(std::int64_t)>& run, std::int64_t first, std::int64_t calls) override {
    constexpr double kLeast = 2e-5, kMost = 2e-2;
    timer_.hold(std::clamp(1.3 * host_seconds_per_call_ * static_cast<double>(calls) + kLeast, kLeast, kMost), cuda_.stream());
    const auto begin = std::chrono::steady_clock::now();
    timer_.start(cuda_.stream());
    for (std::int64_t i = 0; i < calls; ++i) run(first + i);
    timer_.stop(cuda_.stream());
    const double host = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const double seconds = timer_.seconds();
    host_seconds_per_call_ = host / static_cast<double>(calls);
    return {seconds, timer_.clock_ghz()};
  }

 private:
  CudaContext cuda_;
  CudaTimer timer_;
  double host_seconds_per_call_ = 1e-5;
};

}  // namespace

std::unique_ptr<TimedDevice> make_gpu_device(int gpu) {
  const int gpus = num_gpus();
  if (gpus == 0) throw CudaError("no GPU: " + why_no_gpu());
  if (gpu < 0 || gpu >= gpus)
    throw CudaError("no GPU " + std::to_string(gpu) + ": there " +
                    (gpus == 1 ? "is one, number 0" : "are " + std::to_string(gpus) + ", from 0"));
  return std::make_unique<GpuDevice>(gpu);
}

}  // namespace kvlab
