#include "calibrate/cases/timing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/quantile.h"
#include "calibrate/cases/kernel_case.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMostCalls = 64;  // queued at once; a GPU's queue holds about a thousand
constexpr double kClockFell = 0.95;

// Unless slow samples are the majority.
std::vector<double> seconds_at_full_clock(const std::vector<TimedDevice::Sample>& samples) {
  double highest = 0;
  for (const TimedDevice::Sample& s : samples) highest = std::max(highest, s.clock_ghz);
  std::vector<double> kept, all;
  for (const TimedDevice::Sample& s : samples) {
    all.push_back(s.seconds);
    if (s.clock_ghz >= kClockFell * highest) kept.push_back(s.seconds);
  }
  return 2 * kept.size() >= all.size() ? kept : all;
}

class CopyCase final : public PreparedCase {
 public:
  CopyCase(TimedDevice& device, std::int64_t bytes)
      : device_(device), size_(bytes), from_(device.allocate(bytes)), to_(device.allocate(bytes)) {
    const std::vector<char> noise(1 << 20, 'x');
    for (std::int64_t at = 0; at < bytes; at += 1 << 20)
      device.to_device(static_cast<char*>(from_.get()) + at, noise.data(), std::min<std::int64_t>(1 << 20, bytes - at));
  }
  void run(std::int64_t) override { device_.copy(to_.get(), from_.get(), size_); }
  [[nodiscard]] std::int64_t copies() const override { return 1; }
  bool matches() override { return true; }
  [[nodiscard]] std::int64_t bytes() const override { return 2 * size_; }
  [[nodiscard]] std::int64_t flops() const override { return 0; }

 private:
  TimedDevice& device_;
  std::int64_t size_;
  std::shared_ptr<void> from_, to_;
};

}  // namespace

bool is_debug_build() {
#ifdef NDEBUG
  return false;
#else
  return true;
#endif
}

Timing time_case(PreparedCase& prepared, TimedDevice& device, const TimingPlan& plan) {
  const auto run = [&](std::int64_t call) { prepared.run(call); };
  std::int64_t next = 0;
  const auto sample = [&](std::int64_t calls) {
    const TimedDevice::Sample s = device.time(run, next, calls);
    next += calls;
    return s;
  };
  double once = std::numeric_limits<double>::infinity(), warmed = 0;  // the first call loads code and page tables
  while (next < 2 || (next < prepared.copies() && warmed < plan.warm_up_seconds)) {
    const double seconds = sample(1).seconds;
    once = std::min(once, seconds), warmed += seconds;
  }
  const auto calls = std::clamp<std::int64_t>(std::llround(plan.sample_seconds / std::max(once, 1e-9)), 1, kMostCalls);
  std::vector<TimedDevice::Sample> samples;
  for (double spent = 0; static_cast<std::int64_t>(samples.size()) < plan.max_samples;) {
    if (spent >= plan.seconds && static_cast<std::int64_t>(samples.size()) >= plan.min_samples) break;
    samples.push_back(sample(calls));
    spent += samples.back().seconds;
  }
  std::vector<double> seconds = seconds_at_full_clock(samples);
  Timing timing;
  timing.samples = static_cast<std::int64_t>(seconds.size());
  timing.discarded = static_cast<std::int64_t>(samples.size() - seconds.size());
  timing.calls_per_sample = calls;
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
  std::sort(seconds.begin(), seconds.end());
  const double median = quantile_of_sorted(seconds, 0.5);
  timing.seconds = median / static_cast<double>(calls);
  timing.mean_frac = median > 0 ? mean / median : 1;
  timing.spread_frac = median > 0 ? (quantile_of_sorted(seconds, 0.75) - quantile_of_sorted(seconds, 0.25)) / median : 0;
  return timing;
}

DeviceRates measure_rates(TimedDevice& device, const std::string& gemm_format, bool short_run) {
  DeviceRates rates;
  const TimingPlan plan{short_run ? 0.05 : 0.5, 5};
  const std::int64_t mib = 1 << 20;
  {
    CopyCase copy(device, short_run ? 32 * mib : std::max(512 * mib, 4 * device.cache_bytes()));
    rates.copy_bytes_per_s = static_cast<double>(copy.bytes()) / time_case(copy, device, plan).seconds;
  }
  const KernelFamily* linear = find_family(device.kind(), "linear", gemm_format);
  if (linear == nullptr) return rates;
  const std::int64_t n = device.kind() == DeviceKind::kGpu ? 8192 : 1024;
  const auto gemm = linear->prepare(device, {{"tokens", n}, {"out", n}, {"in", n}}, {});
  rates.gemm_flops_per_s = static_cast<double>(gemm->flops()) / time_case(*gemm, device, plan).seconds;
  return rates;
}

Rotation cold_rotation(const TimedDevice& device) {
  constexpr std::int64_t kMostOnCpu = std::int64_t{512} << 20;
  const std::int64_t bytes = 3 * device.cache_bytes();
  return {device.kind() == DeviceKind::kCpu ? std::min(bytes, kMostOnCpu) : bytes};
}

std::string KernelFamily::case_name(const Shape& shape) const {
  std::string name = op + "/" + format + "/";
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (i > 0) name += "_";
    name += axes[i].second + std::to_string(shape.at(axes[i].first));
  }
  return name;
}

const std::vector<KernelFamily>& kernel_families() {
  static const std::vector<KernelFamily> all = [] {
    std::vector<KernelFamily> families;
    add_model_cases(families);
    add_attention_cases(families);
    add_score_cases(families);
    add_selection_cases(families);
    add_format_cases(families);
    add_unpack_cases(families);
    add_model_cuda_cases(families);
    add_step_cuda_cases(families);
    add_attention_cuda_cases(families);
    add_transfer_cuda_cases(families);
    return families;
  }();
  return all;
}

const KernelFamily* find_family(DeviceKind device, const std::string& op, const std::string& format) {
  const auto& all = kernel_families();
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const KernelFamily& f) { return f.device == device && f.op == op && f.format == format; });
  return at == all.end() ? nullptr : &*at;
}

}  // namespace kvlab
