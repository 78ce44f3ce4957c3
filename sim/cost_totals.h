#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/int128.h"
#include "sim/cost/cost_model.h"

namespace kvlab {

// A rank's time at its datasheet's peak rates: of each step the longer of FLOPs' and bytes' time, at most the step's time (docs/cost-
// model.md).
class PeakTime {
 public:
  // 0 without peak rates.
  PeakTime() = default;
  explicit PeakTime(const CostModel& cost);

  void add(const StepCost& step);
  // `count` steps: base, base + slope, ...
  void add(const StepCost& base, const StepCost& slope, std::int64_t count);
  // `other` is of the same model.
  void merge(const PeakTime& other);
  [[nodiscard]] double seconds() const;

 private:
  struct Figures {
    std::int64_t flops = 0, bytes = 0, ps = 0;
  };
  struct Bound {
    bool by_flops, is_above_peak;
    bool operator==(const Bound&) const = default;
  };
  [[nodiscard]] Bound bound_of(const Figures& step) const;

  // Millions per second, so products fit into 128 bits.
  std::int64_t flops_rate_ = 0, bytes_rate_ = 0;
  std::int64_t stages_ = 1;                // pipeline stages busy in turn
  Int128 flops_ = 0, bytes_ = 0, ps_ = 0;  // of the steps that each decides
};

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
  std::array<Int128, PartTimes::kCells> times{};
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
