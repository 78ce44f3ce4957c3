#include <algorithm>
#include <cassert>
#include <utility>

#include "sim/cost/step_prices.h"

namespace kvlab {

SampleGrid::SampleGrid(std::size_t axes, std::vector<Sample> samples) : axes_(axes), samples_(std::move(samples)) {
  assert(axes >= 1 && axes <= kMaxAxes);
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    bool is_new = i == 0;  // a new node opens new nodes on all lower levels
    for (std::size_t level = 0; level < axes_; ++level) {
      is_new = is_new || samples_[i].at[level] != samples_[i - 1].at[level];
      if (!is_new) continue;
      if (level + 1 < axes_) first_child_[level].push_back(value_[level + 1].size());
      value_[level].push_back(static_cast<double>(samples_[i].at[level]));
    }
  }
  for (std::size_t level = 0; level + 1 < axes_; ++level) first_child_[level].push_back(value_[level + 1].size());
  assert(empty() || value_[axes_ - 1].size() == samples_.size());
}

SampleGrid::Bracket SampleGrid::bracket(std::size_t level, std::size_t begin, std::size_t end, double x) const {
  const double* const values = value_[level].data();
  const double *const first = values + begin, *const last = values + end, *const above = std::upper_bound(first, last, x);
  if (above == first) return {begin, begin, 0, Footing::kExtrapolated};
  const std::size_t low = static_cast<std::size_t>(above - values) - 1;
  if (x == values[low]) return {low, low, 0, Footing::kInside};
  const auto along = [&](std::size_t i, Footing footing) {
    return Bracket{i, i + 1, (x - values[i]) / (values[i + 1] - values[i]), footing};
  };
  if (above != last) return along(low, Footing::kInterpolated);
  if (end - begin == 1) return {low, low, 0, Footing::kExtrapolated};
  return along(low - 1, Footing::kExtrapolated);
}

SampleGrid::Value SampleGrid::descend(std::size_t level, std::size_t begin, std::size_t end, std::span<const double> point) const {
  const Bracket b = bracket(level, begin, end, point[level]);
  const auto value_at = [&](std::size_t node) {
    if (level + 1 == axes_) return Value{samples_[node].time.real(), Footing::kInside};
    return descend(level + 1, first_child_[level][node], first_child_[level][node + 1], point);
  };
  Value low = value_at(b.low);
  low.footing = std::max(low.footing, b.footing);
  if (b.low == b.high) return low;
  const Value high = value_at(b.high);
  double ps = low.ps + (high.ps - low.ps) * b.weight;
  if (b.weight > 1) ps = std::max(ps, high.ps);
  return {ps, std::max(low.footing, high.footing)};
}

SampleGrid::Value SampleGrid::at(std::span<const double> point) const {
  assert(point.size() == axes_ && !empty());
  return descend(0, 0, value_[0].size(), point);
}

void SampleGrid::collect(std::size_t level, std::size_t begin, std::size_t end, std::span<const double> point,
                         std::vector<std::int64_t>& knots) const {
  if (level + 1 == axes_) {
    for (std::size_t i = begin; i < end; ++i) knots.push_back(samples_[i].at[level]);
    return;
  }
  const Bracket b = bracket(level, begin, end, point[level]);
  for (const std::size_t node : {b.low, b.high}) collect(level + 1, first_child_[level][node], first_child_[level][node + 1], point, knots);
}

std::vector<std::int64_t> SampleGrid::last_axis_knots(std::span<const double> point) const {
  std::vector<std::int64_t> knots;
  collect(0, 0, value_[0].size(), point, knots);
  std::sort(knots.begin(), knots.end());
  knots.erase(std::unique(knots.begin(), knots.end()), knots.end());
  return knots;
}

}  // namespace kvlab
