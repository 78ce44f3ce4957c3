#include "sim/cost_totals.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/checked_time.h"
#include "base/picoseconds.h"
#include "serving/totals.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMillion = 1'000'000;
constexpr double kSecondsPerPs = 1e-12;
constexpr double kMostRate = 1e18;  // in millions per second; a step has less than 2^63 FLOPs, bytes and picoseconds

std::int64_t in_millions(double rate) {
  const double millions = std::round(rate / kMillion);
  return millions >= 1 && millions < kMostRate ? static_cast<std::int64_t>(millions) : 0;
}

}  // namespace

PeakTime::PeakTime(const CostModel& cost)
    : flops_rate_(in_millions(cost.peak_flops())), bytes_rate_(in_millions(cost.peak_bytes_per_s())), stages_(cost.num_stages()) {}

PeakTime::Bound PeakTime::bound_of(const Figures& step) const {
  const bool by_flops = static_cast<Int128>(step.flops) * bytes_rate_ >= static_cast<Int128>(step.bytes) * flops_rate_;
  const Int128 work = static_cast<Int128>(by_flops ? step.flops : step.bytes) * (kMillion * stages_);
  return {by_flops, work > static_cast<Int128>(step.ps) * (by_flops ? flops_rate_ : bytes_rate_)};
}

void PeakTime::add(const StepCost& step) {
  if (flops_rate_ == 0 || bytes_rate_ == 0) return;
  const Bound bound = bound_of({step.flops, step.bytes, step.total.count()});
  if (bound.is_above_peak)
    ps_ += step.total.count();
  else if (bound.by_flops)
    flops_ += step.flops;
  else
    bytes_ += step.bytes;
}

// Along a line each half of the bound changes once at most.
void PeakTime::add(const StepCost& base, const StepCost& slope, std::int64_t count) {
  if (flops_rate_ == 0 || bytes_rate_ == 0) return;
  const auto at = [&](std::int64_t i) {
    return Figures{base.flops + i * slope.flops, base.bytes + i * slope.bytes, (base.total + i * slope.total).count()};
  };
  for (std::int64_t from = 0, end = count; from < count; from = end, end = count) {
    const Figures first = at(from);
    const Bound bound = bound_of(first);
    if (bound_of(at(count - 1)) != bound) {
      std::int64_t same = from;
      --end;
      while (end - same > 1) {
        const std::int64_t middle = same + (end - same) / 2;
        (bound_of(at(middle)) == bound ? same : end) = middle;
      }
    }
    if (bound.is_above_peak)
      ps_ += progression_sum(first.ps, slope.total.count(), end - from);
    else if (bound.by_flops)
      flops_ += progression_sum(first.flops, slope.flops, end - from);
    else
      bytes_ += progression_sum(first.bytes, slope.bytes, end - from);
  }
}

void PeakTime::merge(const PeakTime& other) {
  flops_ += other.flops_;
  bytes_ += other.bytes_;
  ps_ += other.ps_;
}

double PeakTime::seconds() const {
  const auto over = [](Int128 work, std::int64_t millions_per_s) {
    return millions_per_s == 0 ? 0 : static_cast<double>(work) / (static_cast<double>(millions_per_s) * kMillion);
  };
  return over(flops_, flops_rate_) + over(bytes_, bytes_rate_) + static_cast<double>(ps_) * kSecondsPerPs / static_cast<double>(stages_);
}

void CostTotals::add(const StepCost& step) {
  flops += step.flops;
  bytes += step.bytes;
  step.times.each([&](std::size_t cell, Picoseconds ps) { times[cell] += ps.count(); });
  peak.add(step);
}

void CostTotals::add(const StepCost& base, const StepCost& slope, std::int64_t count) {
  const Int128 rises = triangle(count);
  flops += static_cast<Int128>(base.flops) * count + slope.flops * rises;
  bytes += static_cast<Int128>(base.bytes) * count + slope.bytes * rises;
  base.times.each([&](std::size_t cell, Picoseconds ps) { times[cell] += static_cast<Int128>(ps.count()) * count; });
  slope.times.each([&](std::size_t cell, Picoseconds ps) { times[cell] += ps.count() * rises; });
  peak.add(base, slope, count);
}

void CostTotals::merge(const CostTotals& other) {
  flops += other.flops;
  bytes += other.bytes;
  host += other.host;
  peak.merge(other.peak);
  for (std::size_t cell = 0; cell < times.size(); ++cell) times[cell] += other.times[cell];
}

Int128 CostTotals::of(CostPart part) const {
  const Int128* row = &times[PartTimes::cell(part, Footing{})];
  return std::accumulate(row, row + kFootings, Int128{0});
}

Int128 CostTotals::of(Footing footing) const {
  Int128 sum = 0;
  for (std::size_t p = 0; p < kCostParts; ++p) sum += times[PartTimes::cell(static_cast<CostPart>(p), footing)];
  return sum;
}

StepShares CostTotals::shares() const {
  constexpr auto at = [](Basis b) { return static_cast<std::size_t>(b); };
  Int128 all = host;
  for (std::size_t f = 0; f < kFootings; ++f) all += of(static_cast<Footing>(f));
  StepShares shares{};
  for (std::size_t p = 0; p < kCostParts; ++p) {
    const auto own = [&](Footing footing) { return times[PartTimes::cell(static_cast<CostPart>(p), footing)]; };
    shares[p][at(Basis::kMeasured)] = ratio(own(Footing::kInside) + own(Footing::kInterpolated), all);
    shares[p][at(Basis::kExtrapolated)] = ratio(own(Footing::kExtrapolated), all);
    shares[p][at(Basis::kRoofline)] = ratio(own(Footing::kRoofline), all);
    shares[p][at(Basis::kDatasheet)] = ratio(own(Footing::kDatasheet), all);
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
