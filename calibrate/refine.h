#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "calibrate/measurements.h"

namespace kvlab {

// From the coarse grid and begun lines, in measuring order. In two-axis tables a line shares the first count.
std::vector<CalibrationPoint> unmeasured_points(const CalibrationTable& table, const Measurements& measurements);
std::size_t coarse_size(const CalibrationTable& table);

// Never fitted: a quarter of the coarse grid's number, at least four, evenly over the counts' logarithms, off the coarse grid.
std::vector<CalibrationPoint> held_out_points(const CalibrationTable& table, std::uint64_t seed);

// The (geometric) middle of the neighbours between which interpolation errs most: a neighbour's relative leave-one-out error times the
// square of the gap's share of that distance.
struct Gap {
  CalibrationPoint at{};
  double error = 0;
};
// None if no gap errs by more than 1 %, half of the spread and three times noise_frac(). tile_rows: token gaps up to this width are closed
// (Profile::tile_rows).
std::optional<Gap> widest_gap(const CalibrationTable& table, const Measurements& measurements, int tile_rows);

}  // namespace kvlab
