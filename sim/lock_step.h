#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "serving/step.h"
#include "sim/cost_totals.h"
#include "sim/pricing.h"

namespace kvlab {

// Ranks that step together start once all have begun and the last step has ended, and take the slowest's time. vLLM 0.19
// (vllm/v1/worker/dp_utils.py): if every rank runs a CUDA graph, all run the largest; a rank without work computes one token.
class LockStep {
 public:
  LockStep(std::uint32_t ranks, int stages) : ranks_(ranks), stage_free_(static_cast<std::size_t>(stages)) {}

  // All arguments but the time outlive the step. Once all ranks have begun, adds its cost to `totals` and sets its policy_time.
  void begin(StepPricer& pricer, CostModel& cost, InFlightStep& step, CostTotals& totals, Picoseconds ready);
  // After all ranks have begun.
  void finish(InFlightStep& step) const;

 private:
  struct Part {
    StepPricer* pricer;
    InFlightStep* step;
    CostTotals* totals;
  };
  void time_step();
  [[nodiscard]] std::int32_t common_rows() const;

  std::size_t ranks_;
  std::vector<Part> parts_;
  std::vector<Picoseconds> stage_free_, stage_times_, longest_;
  Picoseconds planned_, ready_, start_, end_;  // planned_: ready, but for host time
};

}  // namespace kvlab
