#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "serving/step.h"
#include "sim/cost_totals.h"
#include "sim/pricing.h"

namespace kvlab {

// Times the steps of ranks that step together: each step starts once all ranks have begun theirs and the step before has ended, and lasts
// as long as the slowest rank. The rules of vLLM 0.19 (vllm/v1/worker/dp_utils.py): if every rank runs a CUDA graph, all run the size of
// the largest; a rank without work computes one token.
class LockStep {
 public:
  LockStep(std::uint32_t ranks, int stages) : ranks_(ranks), stage_free_(static_cast<std::size_t>(stages)) {}

  // A rank's part of the next step, ready at `ready`. All arguments but the time outlive the step. Once all ranks have begun, its cost is
  // added to `totals`, and its policy_time is set.
  void begin(StepPricer& pricer, CostModel& cost, InFlightStep& step, CostTotals& totals, Picoseconds ready);
  // Sets the times of the step that all ranks have begun.
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
  Picoseconds planned_, ready_, start_, end_;  // planned_: ready, but for the host's time
};

}  // namespace kvlab
