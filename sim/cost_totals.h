#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/int128.h"
#include "sim/cost/cost_model.h"
#include "sim/peak_time.h"

namespace kvlab {

inline constexpr const char* kLateStep = "a step ends later than that";

// Coarser than Footing: inside tables and between their points is one.
enum class Basis : std::uint8_t { kMeasured, kExtrapolated, kRoofline, kDatasheet };
inline constexpr std::size_t kBases = 4;
// Shares of step time: a row for each CostPart, and last one for waits for the host; a column for each Basis.
using StepShares = std::array<std::array<double, kBases>, kCostParts + 1>;

// Sums of step costs. Integers, so that a sum over a fast-forwarded stretch equals the sum over its steps.
struct CostTotals {
  CostTotals() = default;  // without time at peak
  explicit CostTotals(const CostModel& cost) : peak(cost) {}

  Int128 flops = 0, bytes = 0;
  std::array<std::array<Int128, kFootings>, kCostParts> times{};
  Int128 host = 0;  // ps between steps in which a device waits for its host to plan and launch
  PeakTime peak;

  void add(const StepCost& step);
  // `count` steps whose costs run base, base + slope, ...
  void add(const StepCost& base, const StepCost& slope, std::int64_t count);
  void merge(const CostTotals& other);

  [[nodiscard]] Int128 of(CostPart part) const;
  [[nodiscard]] Int128 of(Footing footing) const;
  // Shares of device time and waits for the host, which add up to 1; all 0 if there were no steps.
  [[nodiscard]] StepShares shares() const;
};

// A step that is ready at `at` passes through stages, each of which is free from some time on; returns its end.
Picoseconds pass_stages(Picoseconds at, const std::vector<Picoseconds>& times, std::vector<Picoseconds>& free);

}  // namespace kvlab
