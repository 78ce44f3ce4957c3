#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/int128.h"
#include "sim/cost/cost_model.h"
#include "sim/peak_time.h"

namespace kvlab {

inline constexpr const char* kLateStep = "a step ends later than that";

// Sums of step costs. Integers, so that a sum over a fast-forwarded stretch equals the sum over its steps.
struct CostTotals {
  explicit CostTotals(const CostModel& cost) : peak(cost) {}

  Int128 flops = 0, bytes = 0;
  std::array<Int128, kCostParts> part{};
  std::array<Int128, kFootings> footing{};
  PeakTime peak;

  // `count` steps whose costs run base, base + slope, ...
  void add(const StepCost& base, const StepCost& slope, std::int64_t count);
  void merge(const CostTotals& other);
};

// A step that is ready at `at` passes through stages, each of which is free from some time on; returns its end.
Picoseconds pass_stages(Picoseconds at, const std::vector<Picoseconds>& times, std::vector<Picoseconds>& free);

}  // namespace kvlab
