#pragma once

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "calibrate/tables.h"

namespace kvlab {

// One measurement of one point.
struct Measured {
  double seconds = 0, spread_frac = 0;
  std::int64_t rows = 0, tokens = 0, outputs = 0, bytes = 0, flops = 0;  // of the call; rows, tokens, outputs only of policy operations
  double mean_frac = 1;                                                  // mean of the samples / `seconds`, their median
};
enum class Role : std::uint8_t { kFit, kHeldOut };  // held-out points are never fitted

// Everything measured so far, in memory and in FOLDER/measurements.csv, to which every measurement is appended as it is taken: what a
// calibration that was cut off continues from. FOLDER/calibration.yaml says what was measured where; a folder of another device, model or
// seed is refused.
class Measurements {
 public:
  struct Entry {
    CalibrationPoint at;
    Role role;
    Measured measured;            // seconds: mean_seconds()
    std::vector<double> medians;  // of each time it was measured

    [[nodiscard]] int times() const { return static_cast<int>(medians.size()); }
    // Mean of the medians, without those a factor of four away from their median (with two: from the smaller). There the device or its
    // clock had stopped.
    [[nodiscard]] double mean_seconds() const;
    // Standard deviation of these medians / their mean; 0 for one.
    [[nodiscard]] double deviation_frac() const;
  };
  // Properties that all measurements of a folder share.
  using Identity = std::map<std::string, std::string>;

  // Makes the folder, or reads its files. InputError for a folder that is something else or cannot be written.
  Measurements(const std::string& folder, const Identity& identity);

  void add(const std::string& table, const CalibrationPoint& at, Role role, const Measured& measured);
  // Each point once, in the order of first measurement.
  [[nodiscard]] const std::vector<Entry>& of(const std::string& table) const;
  [[nodiscard]] std::vector<std::string> tables() const;
  [[nodiscard]] bool has(const std::string& table, const CalibrationPoint& at) const;
  // By how much a table's samples take longer, in the mean, than the medians of their measurements: in the median of its measurements,
  // times stall_frac().
  [[nodiscard]] double mean_frac(const std::string& table) const { return own_mean_frac(table) * stall_frac(); }
  // By how much samples take longer in the mean of all measurements than is usual for their tables. A stall that hits one measurement by
  // chance, and would hit any other as well, is spread over all of them by this.
  [[nodiscard]] double stall_frac() const;
  // Relative deviation of one measurement from another of the same point: the mean over all points measured more than once, or that over
  // the table's where it is larger; 0: none was.
  [[nodiscard]] double noise_frac(const std::string& table) const;
  [[nodiscard]] std::size_t size() const { return size_; }  // measurements, repeated ones included
  [[nodiscard]] const std::string& folder() const { return folder_; }

 private:
  void read();
  void take(const std::string& table, const Entry& entry);
  [[nodiscard]] double own_mean_frac(const std::string& table) const;
  std::string folder_;
  std::map<std::string, std::vector<Entry>> tables_;
  std::map<std::string, std::vector<double>> mean_fracs_;  // of every measurement
  std::size_t size_ = 0;
  std::ofstream stream_;
};

}  // namespace kvlab
