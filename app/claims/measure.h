#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/csv.h"

namespace kvlab {

// A quantity over the results of a claim's runs:
//   ours.output_tokens_per_s / baseline.output_tokens_per_s    RUN.COLUMN of summary.csv: the mean over the run's rows (seeds and axes)
//   max(ours.output_tokens_per_s)                              also min, mean, median: over the rows
//   largest(ours.rate_per_s, ours.itl_p99_ms <= 100, ...)      the largest value among the rows that meet every limit (<= or >=)
// with numbers, + - * / and parentheses. A column that is an axis has the axis' path for its name; its last part is enough.
class Measure {
 public:
  using Tables = std::map<std::string, CsvTable>;  // summary.csv of each run

  // place: of the text, for messages. runs: names that it may use. InputError on anything that is no such quantity.
  static Measure parse(const std::string& text, const std::string& place, const std::vector<std::string>& runs);
  // InputError: a column that the run does not have, a row without a value, none or all of the rows within the limits of `largest`, a
  // division by zero.
  [[nodiscard]] double value(const Tables& tables) const { return value_(tables); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::function<double(const Tables&)> value_;
};

}  // namespace kvlab
