#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "serving/device.h"
#include "serving/host_setup.h"
#include "serving/link.h"
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

// A simulated GPU or group of GPUs with one model. The cost model sets times of steps and copies.
class SimDevice final : public Device {
 public:
  // group: ranks that step together; null: none. encode: null without images.
  // cost: may be shared by devices of one thread.
  SimDevice(std::shared_ptr<CostModel> cost, const LinkSetup& swap_link, const MemorySetup& memory,
            std::shared_ptr<LockStep> group = nullptr, EncodeCost encode = nullptr);

  [[nodiscard]] Traits traits() const override;
  void attach(ReplicaState& state, const Scheduler& scheduler) override;
  Picoseconds copy(const SwapCopy& copy, Picoseconds at) override;
  bool begin(InFlightStep& step, Picoseconds at) override;
  void finish(InFlightStep& step) override;
  DecodeTimes look_ahead() override;
  void advance(std::int64_t n, Picoseconds end) override;
  [[nodiscard]] double prefill_seconds(std::int64_t tokens, std::int64_t kv_before) override;
  [[nodiscard]] double decode_seconds(std::int64_t rows, std::int64_t kv_tokens) override;
  [[nodiscard]] std::string likely_cause() const override { return cost_->likely_cause(); }

  [[nodiscard]] const CostModel& cost() const { return *cost_; }
  [[nodiscard]] const CostTotals& totals() const { return totals_; }

 private:
  [[nodiscard]] Span estimate(const StepOutline& outline);
  [[nodiscard]] Span time_in(std::span<const SwapCopy> copies, Time now) const;
  DecodeTimes times_of(StepShape& shape);
  DecodeTimes look_ahead_of(const DecodeAhead& ahead);
  void time_stages(InFlightStep& step, Picoseconds ready);

  std::shared_ptr<CostModel> cost_;
  std::int64_t block_bytes_, swapped_bytes_;  // on the link to CPU memory: of the store, of a swap
  std::shared_ptr<LockStep> group_;
  EncodeCost encode_;
  Link to_host_, from_host_;
  const ReplicaState* state_ = nullptr;
  const Scheduler* scheduler_ = nullptr;
  std::optional<StepPricer> pricer_;
  StepCost base_, slope_;        // decode steps looked ahead
  std::vector<StepCost> costs_;  // the same if not linear
  std::vector<Picoseconds> stage_free_, stage_times_;
  CostTotals totals_;
};

}  // namespace kvlab
