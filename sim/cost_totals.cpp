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

// How many of the steps from ... end - 1, from the first on, are as it is. Along a line `is` changes once at most.
template <class Predicate>
std::int64_t alike(bool first, std::int64_t from, std::int64_t end, const Predicate& is) {
  if (end - from < 2 || is(end - 1) == first) return end - from;
  std::int64_t same = from, other = end - 1;
  while (other - same > 1) {
    const std::int64_t middle = same + (other - same) / 2;
    (is(middle) == first ? same : other) = middle;
  }
  return same + 1 - from;
}

}  // namespace

PeakTime::PeakTime(const CostModel& cost)
    : flops_rate_(in_millions(cost.peak_flops())), bytes_rate_(in_millions(cost.peak_bytes_per_s())), stages_(cost.num_stages()) {}

PeakTime::Figures PeakTime::figures_at(const StepCost& base, const StepCost& slope, std::int64_t i) {
  return {base.flops + i * slope.flops, base.bytes + i * slope.bytes, (base.total + i * slope.total).count()};
}

bool PeakTime::flops_take_longer(const Figures& step) const {
  return static_cast<Int128>(step.flops) * bytes_rate_ >= static_cast<Int128>(step.bytes) * flops_rate_;
}

bool PeakTime::is_above_peak(const Figures& step, bool by_flops) const {
  const Int128 work = static_cast<Int128>(by_flops ? step.flops : step.bytes) * (kMillion * stages_);
  return work > static_cast<Int128>(step.ps) * (by_flops ? flops_rate_ : bytes_rate_);
}

void PeakTime::add(const StepCost& base, const StepCost& slope, std::int64_t count) {
  if (flops_rate_ == 0 || bytes_rate_ == 0) return;
  for (std::int64_t from = 0; from < count;) {
    const Figures first = figures_at(base, slope, from);
    const bool by_flops = flops_take_longer(first);
    const bool is_above = is_above_peak(first, by_flops);
    std::int64_t n = alike(by_flops, from, count, [&](std::int64_t i) { return flops_take_longer(figures_at(base, slope, i)); });
    n = alike(is_above, from, from + n, [&](std::int64_t i) { return is_above_peak(figures_at(base, slope, i), by_flops); });
    if (is_above)
      ps_ += progression_sum(first.ps, slope.total.count(), n);
    else if (by_flops)
      flops_ += progression_sum(first.flops, slope.flops, n);
    else
      bytes_ += progression_sum(first.bytes, slope.bytes, n);
    from += n;
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
