#pragma once

#include <vector>

#include "serving/step.h"
#include "sim/cost/cost_model.h"

namespace kvlab {

// Turns a step in flight into the shapes of the cost model, reusing its memory.
class StepPricer {
 public:
  StepPricer(CostModel& cost, const Scheduler& scheduler) : cost_(cost), scheduler_(scheduler) {}
  StepCost price(const InFlightStep& step);
  // The shape last priced; valid until the next call.
  [[nodiscard]] const StepShape& shape() const { return shape_; }

 private:
  void collect(const InFlightStep& step, int layer);
  StepCost price_layers(const InFlightStep& step);
  void add_passes(const InFlightStep& step, StepCost& sum);

  CostModel& cost_;
  const Scheduler& scheduler_;
  StepShape shape_;
  std::vector<PrefillPiece> prefills_;
  std::vector<int> edges_;
};

}  // namespace kvlab
