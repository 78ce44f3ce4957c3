#pragma once

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "calibrate/fit.h"
#include "calibrate/meter.h"
#include "sim/cost/hardware_spec.h"

namespace kvlab {

struct CalibrationPlan {
  double seconds = 600;    // of this call; coarse grid and held-out points are always measured
  std::uint64_t seed = 1;  // of the held-out points
  std::string out;         // the profile's folder
  std::string hardware;    // in profiles/hardware; "": written with the profile
  std::string source;      // program and version
  std::string measured;    // date
  CalibrationLimits limits;
  std::vector<Recipe> recipes;  // operations without a table are timed in the engine
};

struct CalibrationResult {
  bool is_complete = false;  // all coarse grids and held-out points are measured: a profile was written
  std::size_t measurements = 0;
  std::vector<HeldOutError> errors;
  std::string failure;               // calibration_failure()
  std::vector<std::string> missing;  // tables without a kernel here; priced by the roofline
};

// Coarse grids and held-out points, then, while time is left, the gaps of refine.h, in rounds. A later call continues. Writes the profile
// (profile_folder.h). `stop` ends it after the current measurement.
CalibrationResult calibrate(const ModelSpec& model, Meter& meter, const CalibrationPlan& plan, const std::atomic<bool>& stop,
                            std::ostream& log);

}  // namespace kvlab
