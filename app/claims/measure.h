#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/csv.h"

namespace kvlab {

// Arithmetic (+ - * / and parentheses) with numbers and
//   RUN.COLUMN of summary.csv: the mean over rows (seeds and axes)
//   max(RUN.COLUMN), min, mean, median: over rows
//   largest(ours.rate_per_s, ours.itl_p99_ms <= 100, ...): over rows that meet every limit (<= or >=)
// An axis is named by its path or the path's last part.
class Measure {
 public:
  using Tables = std::map<std::string, CsvTable>;  // summary.csv of each run

  // place: for messages. runs: allowed names. Throws InputError.
  static Measure parse(const std::string& text, const std::string& place, const std::vector<std::string>& runs);
  // Throws InputError for an unknown column, a row without a value, a `largest` that no row or every row meets, or division by zero.
  [[nodiscard]] double value(const Tables& tables) const { return value_(tables); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::function<double(const Tables&)> value_;
};

}  // namespace kvlab
