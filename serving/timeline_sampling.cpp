#include "serving/timeline_sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/checked_time.h"

namespace kvlab {

void TimelineSampling::note(Picoseconds at) {
  num_rows_ += rows_;
  if (num_rows_ < next_bound_) return;
  if (interval_ == asked_) first_change_ = at;
  next_bound_ = num_rows_ + std::max<std::uint64_t>(rows_, most_rows_ / 10);
  if (!add_overflows(interval_, interval_)) interval_ = interval_ + interval_;
}

std::string TimelineSampling::remark(Picoseconds duration) const {
  if (interval_ == asked_) return "";
  const double samples = static_cast<double>(std::max<std::uint64_t>(1, most_rows_ / rows_));
  const double fits_ms = std::ceil(to_s(duration) / samples * 1e3);
  return fmt::format(
      "timeline.csv: samples are {:g} ms apart up to {:.6g} s and further apart after it, at the end {:g} ms, since it would have more "
      "than "
      "{} rows; 'timeline_interval_ms: {:g}' fits the whole run",
      to_s(asked_) * 1e3, to_s(first_change_), to_s(interval_) * 1e3, most_rows_, fits_ms);
}

}  // namespace kvlab
