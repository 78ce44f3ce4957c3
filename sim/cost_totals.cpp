#include "sim/cost_totals.h"

#include <algorithm>
#include <numeric>

#include "base/checked_time.h"
#include "serving/totals.h"

namespace kvlab {

void CostTotals::add(const StepCost& step) {
  flops += step.flops;
  bytes += step.bytes;
  for (std::size_t p = 0; p < kCostParts; ++p)
    for (std::size_t f = 0; f < kFootings; ++f) times[p][f] += step.times[p][f].count();
  static const StepCost kSame;
  peak.add(step, kSame, 1);
}

void CostTotals::add(const StepCost& base, const StepCost& slope, std::int64_t count) {
  flops += progression_sum(base.flops, slope.flops, count);
  bytes += progression_sum(base.bytes, slope.bytes, count);
  for (std::size_t p = 0; p < kCostParts; ++p) {
    for (std::size_t f = 0; f < kFootings; ++f) {
      const Picoseconds first = base.times[p][f], step = slope.times[p][f];
      if (first != Picoseconds{} || step != Picoseconds{}) times[p][f] += progression_sum(first, step, count);  // most are 0
    }
  }
  peak.add(base, slope, count);
}

void CostTotals::merge(const CostTotals& other) {
  flops += other.flops;
  bytes += other.bytes;
  host += other.host;
  peak.merge(other.peak);
  for (std::size_t p = 0; p < kCostParts; ++p)
    for (std::size_t f = 0; f < kFootings; ++f) times[p][f] += other.times[p][f];
}

Int128 CostTotals::of(CostPart part) const {
  const auto& own = times[static_cast<std::size_t>(part)];
  return std::accumulate(own.begin(), own.end(), Int128{0});
}

Int128 CostTotals::of(Footing footing) const {
  Int128 sum = 0;
  for (const auto& own : times) sum += own[static_cast<std::size_t>(footing)];
  return sum;
}

StepShares CostTotals::shares() const {
  constexpr auto at = [](Basis b) { return static_cast<std::size_t>(b); };
  constexpr auto from = [](Footing f) { return static_cast<std::size_t>(f); };
  Int128 all = host;
  for (std::size_t f = 0; f < kFootings; ++f) all += of(static_cast<Footing>(f));
  StepShares shares{};
  for (std::size_t p = 0; p < kCostParts; ++p) {
    const auto& own = times[p];
    shares[p][at(Basis::kMeasured)] = ratio(own[from(Footing::kInside)] + own[from(Footing::kInterpolated)], all);
    shares[p][at(Basis::kExtrapolated)] = ratio(own[from(Footing::kExtrapolated)], all);
    shares[p][at(Basis::kRoofline)] = ratio(own[from(Footing::kRoofline)], all);
    shares[p][at(Basis::kDatasheet)] = ratio(own[from(Footing::kDatasheet)], all);
  }
  shares[kCostParts][at(Basis::kMeasured)] = ratio(host, all);  // a profile has measured it
  return shares;
}

Picoseconds pass_stages(Picoseconds at, const std::vector<Picoseconds>& times, std::vector<Picoseconds>& free) {
  for (std::size_t stage = 0; stage < times.size(); ++stage) {
    at = add_time(std::max(at, free[stage]), times[stage], kLateStep);
    free[stage] = at;
  }
  return at;
}

}  // namespace kvlab
