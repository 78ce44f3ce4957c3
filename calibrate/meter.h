#pragma once

#include <memory>
#include <string>

#include "calibrate/cases/device.h"
#include "calibrate/measurements.h"
#include "calibrate/recipe_ops.h"

namespace kvlab {

// Properties of a device, apart from the tables.
struct DeviceFacts {
  std::string name;
  DeviceKind kind = DeviceKind::kCpu;
  std::int64_t memory_bytes = 0, cache_bytes = 0;
  double copy_bytes_per_s = 0, gemm_flops_per_s = 0;  // 0: not measured
  double launch_seconds = 0;                          // one kernel of a queue of empty ones
  // The least time of a step on the host. GPU: copy the inputs there, launch once, copy the tokens back and wait for them. CPU: hand a job
  // to another thread and wait for it.
  double round_trip_seconds = 0;
};

// Takes the measurements of a calibration.
class Meter {
 public:
  virtual ~Meter() = default;
  [[nodiscard]] virtual DeviceFacts facts() = 0;
  // True: there is a kernel for the table.
  [[nodiscard]] virtual bool can_measure(const CalibrationTable& table) const = 0;
  // Samples for about so long. Before the first measurement of a table its kernel's result is checked: InputError if it is wrong.
  virtual Measured measure(const CalibrationTable& table, const CalibrationPoint& at, double seconds) = 0;
  // The operations of a recipe as the engine calls them. Errors (InputError) as time_recipe's.
  virtual std::vector<RecipeCalls> measure_recipe(const Recipe& recipe, const RecipeSteps& steps, const std::atomic<bool>& stop) = 0;
};

// With the kernels of the registry. Operands rotate as rotation_at says.
std::unique_ptr<Meter> make_device_meter(TimedDevice& device, const ModelSpec& model);

}  // namespace kvlab
