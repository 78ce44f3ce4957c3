#pragma once

#include <cstdint>

#include "base/int128.h"
#include "sim/cost/cost_model.h"

namespace kvlab {

// A rank's time at its datasheet's peak rates: of each step the longer of FLOPs' and bytes' time, at most the step's time. Over step time
// it is utilisation, which power follows (docs/cost-model.md, "Energy and price"). Integers, so fast-forwarded sums are exact.
class PeakTime {
 public:
  // 0 without peak rates.
  PeakTime() = default;
  explicit PeakTime(const CostModel& cost);

  // `count` steps: base, base + slope, ...
  void add(const StepCost& base, const StepCost& slope, std::int64_t count);
  // `other` is of the same model.
  void merge(const PeakTime& other);
  [[nodiscard]] double seconds() const;

 private:
  struct Figures {
    std::int64_t flops = 0, bytes = 0, ps = 0;
  };
  static Figures figures_at(const StepCost& base, const StepCost& slope, std::int64_t i);
  [[nodiscard]] bool flops_take_longer(const Figures& step) const;
  [[nodiscard]] bool is_above_peak(const Figures& step, bool by_flops) const;

  // Millions per second, so products fit into 128 bits.
  std::int64_t flops_rate_ = 0, bytes_rate_ = 0;
  std::int64_t stages_ = 1;                // pipeline stages busy in turn
  Int128 flops_ = 0, bytes_ = 0, ps_ = 0;  // of the steps that each decides
};

}  // namespace kvlab
