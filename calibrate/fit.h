#pragma once

#include <string>
#include <vector>

#include "calibrate/measurements.h"
#include "sim/cost/profile.h"

namespace kvlab {

// Fills the tables of `profile` from the fitted points, each times its Measurements::mean_frac(): a step's time is a sum, so entries are
// means. In tables with two axes, a line enters only when it has all of its coarse points. Leave-one-out errors on its own points decide if
// a policy operation's curve is straight over bytes or over logarithms.
void fit_tables(const std::vector<CalibrationTable>& tables, const Measurements& measurements, Profile& profile);

// A held-out point, as measured and as the cost model predicts it.
struct HeldOut {
  std::string table;
  CalibrationPoint at{};
  double measured_ps = 0, predicted_ps = 0;  // both times Measurements::mean_frac()
  Footing footing = Footing::kInterpolated;
  [[nodiscard]] double error_frac() const;  // |predicted - measured| / measured
};
std::vector<HeldOut> predict_held_out(const std::vector<CalibrationTable>& tables, const Measurements& measurements,
                                      const Profile& profile);

// Errors over one table, or over all.
struct HeldOutError {
  std::string table;
  std::size_t points = 0;
  double median_frac = 0, p95_frac = 0;
};
std::vector<HeldOutError> errors_by_table(const std::vector<HeldOut>& held_out);  // in the order given; "all" at the end

// Goals of a calibration: held-out errors over all tables, and the spread of samples within one measurement.
struct CalibrationGoals {
  double median_frac = 0.03, p95_frac = 0.10;
  double spread_frac = 0.50;  // of nine measurements in ten
};

// "" where the profile meets its goals, else those that it misses, with their numbers: "held-out error 20.4 % in the median (goal 3 %)".
std::string calibration_failure(const std::vector<HeldOutError>& errors, const Measurements& measurements,
                                const CalibrationGoals& goals = {});

}  // namespace kvlab
