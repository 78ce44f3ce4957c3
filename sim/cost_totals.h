#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/int128.h"
#include "sim/cost/cost_model.h"
#include "sim/peak_time.h"

namespace kvlab {

inline constexpr const char* kLateStep = "a step ends later than that";

// Coarser than Footing: inside and between points are one.
enum class Basis : std::uint8_t { kMeasured, kExtrapolated, kRoofline, kDatasheet };
inline constexpr std::size_t kBases = 4;
// Parts of step time: a row per CostPart, and last waits for the host; a column per Basis.
using StepShares = std::array<std::array<double, kBases>, kCostParts + 1>;

// Integers, so fast-forwarded sums are exact.
struct CostTotals {
  CostTotals() = default;  // without time at peak
  explicit CostTotals(const CostModel& cost) : peak(cost) {}

  Int128 flops = 0, bytes = 0;
  std::array<std::array<Int128, kFootings>, kCostParts> times{};
  Int128 host = 0;  // ps that devices wait for hosts
  PeakTime peak;

  void add(const StepCost& step);
  // `count` steps: base, base + slope, ...
  void add(const StepCost& base, const StepCost& slope, std::int64_t count);
  void merge(const CostTotals& other);

  [[nodiscard]] Int128 of(CostPart part) const;
  [[nodiscard]] Int128 of(Footing footing) const;
  // Shares of device time and waits for the host, adding up to 1; 0 without steps.
  [[nodiscard]] StepShares shares() const;
};

// From `at` through stages that are free at `free`; returns its end.
Picoseconds pass_stages(Picoseconds at, const std::vector<Picoseconds>& times, std::vector<Picoseconds>& free);

}  // namespace kvlab
