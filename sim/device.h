#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "base/int128.h"
#include "serving/device.h"
#include "sim/link.h"
#include "sim/pricing.h"

namespace kvlab {

// Sums of step costs. Integers, so that a sum over a fast-forwarded stretch equals the sum over its steps.
struct CostTotals {
  Int128 flops = 0, bytes = 0;
  std::array<Int128, kCostParts> part{};
  std::array<Int128, kFootings> footing{};

  // `count` steps whose costs run base, base + slope, ...
  void add(const StepCost& base, const StepCost& slope, std::int64_t count);
  void merge(const CostTotals& other);
};

// A simulated GPU, or a group of them that runs one model: steps and copies take the time that the cost model says.
class SimDevice final : public Device {
 public:
  // block_bytes: of one block of the pool.
  SimDevice(std::unique_ptr<CostModel> cost, const LinkSetup& swap_link, std::int64_t block_bytes);

  [[nodiscard]] Traits traits() const override;
  void attach(ReplicaState& state, const Scheduler& scheduler) override;
  Picoseconds copy(const SwapCopy& copy, Picoseconds at) override;
  bool begin(InFlightStep& step, Picoseconds at) override;
  DecodeTimes look_ahead() override;
  void advance(std::int64_t n, Picoseconds end) override;
  [[nodiscard]] std::string likely_cause() const override { return cost_->likely_cause(); }

  [[nodiscard]] const CostModel& cost() const { return *cost_; }
  [[nodiscard]] const CostTotals& totals() const { return totals_; }

 private:
  void time_stages(InFlightStep& step, Picoseconds ready);

  std::unique_ptr<CostModel> cost_;
  std::int64_t block_bytes_;
  Link to_host_, from_host_;
  const ReplicaState* state_ = nullptr;
  const Scheduler* scheduler_ = nullptr;
  std::optional<StepPricer> pricer_;
  StepCost base_, slope_;  // of the decode steps looked ahead
  std::vector<Picoseconds> stage_free_, stage_times_;
  CostTotals totals_;
};

}  // namespace kvlab
