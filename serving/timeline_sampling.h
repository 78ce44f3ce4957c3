#pragma once

#include <cstdint>
#include <string>

#include "base/picoseconds.h"

namespace kvlab {

// Sample times. From `most_rows` rows on, each further tenth doubles the interval.
class TimelineSampling {
 public:
  // interval 0: no samples. rows: per sample.
  TimelineSampling(Picoseconds interval, std::uint64_t rows, std::uint64_t most_rows)
      : asked_(interval), interval_(interval), rows_(rows), most_rows_(most_rows), next_bound_(most_rows) {}

  [[nodiscard]] bool is_on() const { return asked_ > Picoseconds{}; }
  [[nodiscard]] Picoseconds interval() const { return interval_; }
  void note(Picoseconds at);
  // States the interval that fits `duration`; "" if unchanged.
  [[nodiscard]] std::string remark(Picoseconds duration) const;

 private:
  Picoseconds asked_, interval_, first_change_;
  std::uint64_t rows_, most_rows_, num_rows_ = 0, next_bound_;
};

}  // namespace kvlab
