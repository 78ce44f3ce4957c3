#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "calibrate/measurements.h"

namespace kvlab {

// Points of the table's coarse grid, and of lines begun between its lines, in the order they are to be measured. With two axes a line is
// the points of one first count; every line has the second counts of the coarse grid.
std::vector<CalibrationPoint> unmeasured_points(const CalibrationTable& table, const Measurements& measurements);
std::size_t coarse_size(const CalibrationTable& table);

// Points that are measured but never fitted, a quarter of the coarse grid's number and at least four: drawn with the seed before anything
// is measured, even over the logarithms of the counts. None is on the coarse grid.
std::vector<CalibrationPoint> held_out_points(const CalibrationTable& table, std::uint64_t seed);

// Between which two neighbours interpolation errs most, and the point in the (geometric) middle. How wrong it is there is estimated from
// leaving out the neighbours' own neighbours: the relative error at a point that is interpolated from the two beside it, times the
// square of the share that the gap has of these two's distance, as linear interpolation errs with the square of the step.
struct Gap {
  CalibrationPoint at{};
  double error = 0;
};
// Nothing where no gap is estimated to err by more than 1 %, by more than half of the measurements' spread, and by more than three times
// what the noise between measurements (Measurements::noise_frac) makes of it. tile_rows: gaps of tables over tokens that are no wider are
// closed (Profile::tile_rows).
std::optional<Gap> widest_gap(const CalibrationTable& table, const Measurements& measurements, int tile_rows);

}  // namespace kvlab
