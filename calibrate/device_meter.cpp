#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/quantile.h"
#include "calibrate/cases/buffers.h"
#include "calibrate/cases/timing.h"
#include "calibrate/meter.h"
#include "calibrate/recipe_ops.h"
#include "kernels/device/cuda/events.h"

namespace kvlab {

namespace {

// A job on another thread, as the planning thread's per step.
double thread_round_trip() {
  std::mutex mutex;
  std::condition_variable changed;
  constexpr int kTrips = 200;
  int asked = 0, answered = 0;
  std::thread other([&] {
    std::unique_lock lock(mutex);
    while (answered < kTrips) {
      changed.wait(lock, [&] { return asked > answered; });
      ++answered;
      changed.notify_all();
    }
  });
  std::vector<double> seconds;
  for (int i = 0; i < kTrips; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex);
    ++asked;
    changed.notify_all();
    changed.wait(lock, [&] { return answered == asked; });
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  other.join();
  return upper_median(seconds);
}

// PlainDecoder::step without kernels.
double gpu_round_trip(CudaStream stream) {
  constexpr std::int64_t kInputs = 5, kBytes = 256;
  const DeviceBuffer<std::uint8_t> memory(kBytes);
  std::vector<std::uint8_t> host(kBytes);
  cuda::synchronize(stream);
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < kInputs; ++i) cuda::to_device(memory.data(), host.data(), kBytes, stream);
  cuda::launch_nothing(stream);
  cuda::to_host(host.data(), memory.data(), kBytes, stream);
  cuda::synchronize(stream);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class DeviceMeter final : public Meter {
 public:
  DeviceMeter(TimedDevice& device, const ModelSpec& model) : device_(device), model_(model) {}

  [[nodiscard]] DeviceFacts facts() override {
    DeviceFacts facts{device_.name(), device_.kind(), device_.memory_bytes(), device_.cache_bytes()};
    const DeviceRates rates = measure_rates(device_, device_.kind() == DeviceKind::kCpu ? "f32"
                                                     : model_.dtype == Dtype::kFp16     ? "f16"
                                                                                        : "bf16");
    facts.copy_bytes_per_s = rates.copy_bytes_per_s, facts.gemm_flops_per_s = rates.gemm_flops_per_s;
    if (device_.cuda() == nullptr) {
      facts.round_trip_seconds = thread_round_trip();
      return facts;
    }
    const CudaStream stream = device_.cuda()->stream();
    std::vector<double> launches, round_trips;
    for (int i = 0; i < 100; ++i) {
      constexpr std::int64_t kQueued = 64;
      launches.push_back(device_.time([&](std::int64_t) { cuda::launch_nothing(stream); }, 0, kQueued).seconds / kQueued);
      round_trips.push_back(gpu_round_trip(stream));
    }
    facts.launch_seconds = upper_median(launches), facts.round_trip_seconds = upper_median(round_trips);
    return facts;
  }

  [[nodiscard]] bool can_measure(const CalibrationTable& table) const override {
    return find_family(device_.kind(), table.family, table.format) != nullptr;
  }

  Measured measure(const CalibrationTable& table, const CalibrationPoint& at, double seconds) override {
    const KernelFamily* family = find_family(device_.kind(), table.family, table.format);
    const Shape shape = shape_at(table, model_, at);
    Rotation rotation = rotation_at(table, model_, at, device_);
    if (table.is_streamed()) rotation.shared = &weights_and_kv_;
    const auto prepared = family->prepare(device_, shape, rotation);
    if (!checked_.contains(table.name)) {
      if (!prepared->matches())
        throw InputError(fmt::format("{}: wrong result on {}; nothing is calibrated with it", family->case_name(shape), device_.name()));
      checked_.insert(table.name);
    }
    TimingPlan plan{seconds, 5};
    plan.warm_up_seconds = rotation.shared == nullptr ? seconds : 0;
    const Timing t = time_case(*prepared, device_, plan);
    const PreparedCase::Counts counts = prepared->counts();
    return {t.seconds, t.spread_frac, counts.rows, counts.tokens, counts.outputs, prepared->bytes(), prepared->flops(), t.mean_frac};
  }

  std::vector<RecipeCalls> measure_recipe(const Recipe& recipe, const RecipeSteps& steps, const std::atomic<bool>& stop) override {
    if (engine_ == nullptr) engine_ = make_random_model(device_.cuda() == nullptr ? "cpu" : "cuda", engine_shape(model_));
    return time_recipe(*engine_, recipe, steps, stop);
  }

 private:
  TimedDevice& device_;
  const ModelSpec& model_;
  std::unique_ptr<EngineModel> engine_;  // for recipes
  SharedNumbers weights_and_kv_{device_};
  std::set<std::string> checked_;
};

}  // namespace

std::unique_ptr<Meter> make_device_meter(TimedDevice& device, const ModelSpec& model) {
  return std::make_unique<DeviceMeter>(device, model);
}

}  // namespace kvlab
