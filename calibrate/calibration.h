#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "calibrate/fit.h"
#include "calibrate/meter.h"
#include "sim/cost/hardware_spec.h"

namespace kvlab {

struct CalibrationPlan {
  double seconds = 600;    // of measuring, this call's; the coarse grid and the held-out points are measured however long that takes
  std::uint64_t seed = 1;  // of the held-out points
  std::string out;         // folder of the profile
  std::string hardware;    // name in profiles/hardware of the card; "": one is written beside the profile
  std::string source;      // program and version, for the profile
  std::string measured;    // date
  CalibrationLimits limits;
  std::vector<Recipe> recipes;  // whose operations are timed as the engine calls them, where no table of ours has them
};

struct CalibrationResult {
  bool is_complete = false;  // every table's coarse grid and held-out points are there: a profile was written
  std::size_t measurements = 0;
  std::vector<HeldOutError> errors;
  std::string failure;               // calibration_failure()
  std::vector<std::string> missing;  // tables without a kernel here: for the roofline
};

// Measures the coarse grid of every table, then its held-out points, then, while time is left, one point at a time where interpolation is
// estimated to err most over all tables (refine.h), each table counting alike; then all points again in rounds. Every measurement is kept
// at once; called again on the same folder, it continues. Then writes the profile, heldout.csv, and for a device without a datasheet its
// hardware, refusing what the lint finds impossible. `stop` ends it after the measurement in progress.
CalibrationResult calibrate(const ModelSpec& model, Meter& meter, const CalibrationPlan& plan, const std::atomic<bool>& stop,
                            std::ostream& log);

}  // namespace kvlab
