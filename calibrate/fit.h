#pragma once

#include <string>
#include <vector>

#include "calibrate/measurements.h"
#include "sim/cost/profile.h"

namespace kvlab {

// From fitted points times Measurements::mean_frac(). In two-axis tables a line needs all its coarse points. Leave-one-out errors decide if
// a policy operation is linear in bytes or in their logarithm.
void fit_tables(const std::vector<CalibrationTable>& tables, const Measurements& measurements, Profile& profile);

struct HeldOut {
  std::string table;
  CalibrationPoint at{};
  double measured_ps = 0, predicted_ps = 0;  // times Measurements::mean_frac()
  Footing footing = Footing::kInterpolated;
  [[nodiscard]] double error_frac() const;  // |predicted - measured| / measured
};
std::vector<HeldOut> predict_held_out(const std::vector<CalibrationTable>& tables, const Measurements& measurements,
                                      const Profile& profile);

// Over one table, or over all.
struct HeldOutError {
  std::string table;
  std::size_t points = 0;
  double median_frac = 0, p95_frac = 0;
};
std::vector<HeldOutError> errors_by_table(const std::vector<HeldOut>& held_out);  // in order of tables; "all" last

// Held-out errors over all tables, and spread of samples within a measurement.
struct CalibrationGoals {
  double median_frac = 0.03, p95_frac = 0.10;
  double spread_frac = 0.50;  // of nine in ten measurements
};

// The misses, "held-out error 20.4 % in the median (goal 3 %)", or "".
std::string calibration_failure(const std::vector<HeldOutError>& errors, const Measurements& measurements,
                                const CalibrationGoals& goals = {});

}  // namespace kvlab
