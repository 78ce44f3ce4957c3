#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "calibrate/cases/kernel_case.h"

namespace kvlab {

// A CPU without own memory. Time is what `clock` says of a sample, by its number and its calls.
class FakeDevice final : public TimedDevice {
 public:
  using Clock = std::function<Sample(std::int64_t number, std::int64_t calls)>;
  explicit FakeDevice(Clock clock) : clock_(std::move(clock)) {}
  FakeDevice(std::int64_t cache_bytes, std::int64_t memory_bytes) : cache_bytes_(cache_bytes), memory_bytes_(memory_bytes) {}

  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCpu; }
  [[nodiscard]] std::string name() const override { return "fake"; }
  [[nodiscard]] std::int64_t cache_bytes() const override { return cache_bytes_; }
  [[nodiscard]] std::int64_t memory_bytes() const override { return memory_bytes_; }
  std::shared_ptr<void> allocate(std::int64_t) override { return nullptr; }
  void to_device(void*, const void*, std::int64_t) override {}
  void to_host(void*, const void*, std::int64_t) override {}
  void copy(void*, const void*, std::int64_t) override {}
  void synchronize() override {}
  Sample time(const std::function<void(std::int64_t)>& run, std::int64_t first, std::int64_t calls) override {
    for (std::int64_t i = 0; i < calls; ++i) run(first + i);
    return clock_(samples_++, calls);
  }

 private:
  Clock clock_;
  std::int64_t samples_ = 0, cache_bytes_ = 1 << 20, memory_bytes_ = 1 << 30;
};

}  // namespace kvlab
