#pragma once

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "calibrate/tables.h"

namespace kvlab {

struct Measured {
  double seconds = 0, spread_frac = 0;
  std::int64_t rows = 0, tokens = 0, outputs = 0, bytes = 0, flops = 0;  // of the call; rows, tokens and outputs only for policy operations
  double mean_frac = 1;                                                  // mean of samples / `seconds`
};
enum class Role : std::uint8_t { kFit, kHeldOut };  // held-out points are never fitted

// Appended at once to FOLDER/measurements.csv, from which an interrupted calibration continues. FOLDER/calibration.yaml identifies device,
// model and seed, which must match.
class Measurements {
 public:
  struct Entry {
    CalibrationPoint at;
    Role role;
    Measured measured;            // seconds: mean_seconds()
    std::vector<double> medians;  // of each measurement

    [[nodiscard]] int times() const { return static_cast<int>(medians.size()); }
    // Mean of the medians within a factor of four of their median (of two, the smaller): outliers are stalls.
    [[nodiscard]] double mean_seconds() const;
    // Relative standard deviation of these medians; 0 for one.
    [[nodiscard]] double deviation_frac() const;
  };
  using Identity = std::map<std::string, std::string>;

  // Creates or reads the folder. Throws InputError if it is something else or not writable.
  Measurements(const std::string& folder, const Identity& identity);

  void add(const std::string& table, const CalibrationPoint& at, Role role, const Measured& measured);
  // In order of first measurement.
  [[nodiscard]] const std::vector<Entry>& of(const std::string& table) const;
  [[nodiscard]] std::vector<std::string> tables() const;
  [[nodiscard]] bool has(const std::string& table, const CalibrationPoint& at) const;
  // Samples' mean to their median: the table's median ratio times stall_frac().
  [[nodiscard]] double mean_frac(const std::string& table) const { return own_mean_frac(table) * stall_frac(); }
  // Mean ratio, relative to the tables': spreads rare stalls over all.
  [[nodiscard]] double stall_frac() const;
  // Relative, between measurements of one point: the larger of the table's mean and all tables'; 0 if none was repeated.
  [[nodiscard]] double noise_frac(const std::string& table) const;
  [[nodiscard]] std::size_t size() const { return size_; }  // with repetitions
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
