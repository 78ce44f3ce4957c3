#include "sim/cost_totals.h"

#include <algorithm>

#include "base/checked_time.h"
#include "serving/totals.h"

namespace kvlab {

void CostTotals::add(const StepCost& base, const StepCost& slope, std::int64_t count) {
  flops += progression_sum(base.flops, slope.flops, count);
  bytes += progression_sum(base.bytes, slope.bytes, count);
  for (std::size_t i = 0; i < kCostParts; ++i) part[i] += progression_sum(base.part[i], slope.part[i], count);
  for (std::size_t i = 0; i < kFootings; ++i) footing[i] += progression_sum(base.footing[i], slope.footing[i], count);
  peak.add(base, slope, count);
}

void CostTotals::merge(const CostTotals& other) {
  flops += other.flops;
  bytes += other.bytes;
  for (std::size_t i = 0; i < kCostParts; ++i) part[i] += other.part[i];
  for (std::size_t i = 0; i < kFootings; ++i) footing[i] += other.footing[i];
  peak.merge(other.peak);
}

Picoseconds pass_stages(Picoseconds at, const std::vector<Picoseconds>& times, std::vector<Picoseconds>& free) {
  for (std::size_t stage = 0; stage < times.size(); ++stage) {
    at = add_time(std::max(at, free[stage]), times[stage], kLateStep);
    free[stage] = at;
  }
  return at;
}

}  // namespace kvlab
