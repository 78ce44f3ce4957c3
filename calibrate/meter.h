#pragma once

#include <memory>
#include <string>

#include "calibrate/cases/kernel_case.h"
#include "calibrate/measurements.h"
#include "calibrate/recipe_ops.h"

namespace kvlab {

// Outside of the tables.
struct DeviceFacts {
  std::string name;
  DeviceKind kind = DeviceKind::kCpu;
  std::int64_t memory_bytes = 0, cache_bytes = 0;
  double copy_bytes_per_s = 0, gemm_flops_per_s = 0;  // 0: not measured
  double launch_seconds = 0;                          // per kernel in a queue of empty ones
  // Least step time on the CPU side. GPU: copy inputs, launch, copy tokens back. CPU: a job on another thread.
  double round_trip_seconds = 0;
};

class Meter {
 public:
  virtual ~Meter() = default;
  [[nodiscard]] virtual DeviceFacts facts() = 0;
  // True if there is a kernel.
  [[nodiscard]] virtual bool can_measure(const CalibrationTable& table) const = 0;
  // For about `seconds`. First checks the table's kernel once; throws InputError if its result is wrong.
  virtual Measured measure(const CalibrationTable& table, const CalibrationPoint& at, double seconds) = 0;
  // In the engine. Throws as time_recipe.
  virtual std::vector<RecipeCalls> measure_recipe(const Recipe& recipe, const RecipeSteps& steps, const std::atomic<bool>& stop) = 0;
};

// Operands rotate by rotation_at.
std::unique_ptr<Meter> make_device_meter(TimedDevice& device, const ModelSpec& model);

}  // namespace kvlab
