#pragma once

#include <cstdint>

#include "base/int128.h"
#include "sim/cost/cost_model.h"

namespace kvlab {

// How long a rank's GPUs would take for its steps at the peak rates of their datasheet: of each step the time of its FLOPs or of its bytes,
// the longer of the two, and no more than the step took. Time at peak over step time is the rank's utilisation, which power follows
// (docs/cost-model.md, "Energy and price"). The sums are integers, so that a fast-forwarded stretch equals the sum over its steps.
class PeakTime {
 public:
  // A model without peak rates (0) has no time at peak, and none has none.
  PeakTime() = default;
  explicit PeakTime(const CostModel& cost);

  // `count` steps whose costs run base, base + slope, ...
  void add(const StepCost& base, const StepCost& slope, std::int64_t count);
  // Adds that of another rank of the same model.
  void merge(const PeakTime& other);
  [[nodiscard]] double seconds() const;

 private:
  struct Figures {
    std::int64_t flops = 0, bytes = 0, ps = 0;
  };
  static Figures figures_at(const StepCost& base, const StepCost& slope, std::int64_t i);
  [[nodiscard]] bool flops_take_longer(const Figures& step) const;
  [[nodiscard]] bool is_above_peak(const Figures& step, bool by_flops) const;

  // In millions per second, so that products with a step's figures fit into 128 bits.
  std::int64_t flops_rate_ = 0, bytes_rate_ = 0;
  std::int64_t stages_ = 1;                // a step keeps one pipeline stage after the other busy
  Int128 flops_ = 0, bytes_ = 0, ps_ = 0;  // each of the steps whose time at peak it decides
};

}  // namespace kvlab
