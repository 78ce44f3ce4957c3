#pragma once

#include <cstdint>
#include <string>

#include "base/picoseconds.h"

namespace kvlab {

// The instants of a timeline's samples. Its rows are bounded: from `most_rows` on, every tenth of that number doubles the interval, so that
// a run of any length adds a number of rows that grows with its logarithm.
class TimelineSampling {
 public:
  // interval 0: no samples. rows: of one sample.
  TimelineSampling(Picoseconds interval, std::uint64_t rows, std::uint64_t most_rows)
      : asked_(interval), interval_(interval), rows_(rows), most_rows_(most_rows), next_bound_(most_rows) {}

  [[nodiscard]] bool is_on() const { return asked_ > Picoseconds{}; }
  [[nodiscard]] Picoseconds interval() const { return interval_; }
  // A sample was taken at `at`.
  void note(Picoseconds at);
  // States the interval that fits a run of `duration`; empty: the asked interval was kept.
  [[nodiscard]] std::string remark(Picoseconds duration) const;

 private:
  Picoseconds asked_, interval_, first_change_;
  std::uint64_t rows_, most_rows_, num_rows_ = 0, next_bound_;
};

}  // namespace kvlab
