#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>

#include "base/big_array.h"
#include "base/ceil_div.h"
#include "base/parallel.h"
#include "calibrate/cases/kernel_case.h"

namespace kvlab {

namespace {

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  return "CPU";
}

// The first core's.
std::int64_t largest_cache() {
  std::int64_t largest = 0;
  for (int i = 0; i < 8; ++i) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/size");
    std::int64_t size = 0;
    char unit = 0;
    if (!(file >> size)) continue;
    file >> unit;
    largest = std::max(largest, size * (unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1));
  }
  constexpr std::int64_t kUnknown = 32 << 20;
  return largest > 0 ? largest : kUnknown;
}

constexpr std::int64_t kSmallest = 2 << 20;  // for big_memory's alignment

class CpuDevice final : public TimedDevice {
 public:
  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCpu; }
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::int64_t cache_bytes() const override { return cache_bytes_; }
  [[nodiscard]] std::int64_t memory_bytes() const override {
    return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::int64_t>(sysconf(_SC_PAGE_SIZE));
  }

  // Large pages, as the engine uses.
  std::shared_ptr<void> allocate(std::int64_t bytes) override {
    const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, kSmallest));
    return {big_memory::take(size), [size](void* memory) { big_memory::give_back(memory, size); }};
  }
  void to_device(void* to, const void* from, std::int64_t bytes) override { copy(to, from, bytes); }
  void to_host(void* to, const void* from, std::int64_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    constexpr std::int64_t kPart = 4 << 20;  // on all cores, as kernels run
    for_each_in_parallel(ceil_div(bytes, kPart), [&](std::int64_t part) {
      const std::int64_t at = part * kPart;
      std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, static_cast<std::size_t>(std::min(kPart, bytes - at)));
    });
  }
  void synchronize() override {}

  Sample time(const std::function<void(std::int64_t)>& run, std::int64_t first, std::int64_t calls) override {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < calls; ++i) run(first + i);
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 0};
  }

 private:
  std::string name_ = processor_name();
  std::int64_t cache_bytes_ = largest_cache();
};

}  // namespace

std::unique_ptr<TimedDevice> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace kvlab
