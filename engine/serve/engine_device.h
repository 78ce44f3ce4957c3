#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/serve/serve.h"
#include "engine/serve/step_lane.h"
#include "serving/device.h"

namespace kvlab {

// Runs steps on the model, one after another on a lane. Tells the executor by jobs what plans and outputs did to requests' memory; a job
// finds everything done that jobs before it asked for, so copies count as done when they are handed over.
class EngineDevice final : public Device {
 public:
  // Errors as StepExecutor's.
  explicit EngineDevice(const ServeSetup& setup);
  ~EngineDevice() override;

  [[nodiscard]] Traits traits() const override;
  void attach(ReplicaState& state, const Scheduler& scheduler) override;
  void on_receive(const TraceRequest& request, RequestId r) override;
  void on_event(const RequestEventRecord& event) override;
  Picoseconds copy(const SwapCopy& copy, Picoseconds at) override;
  // InputError: plans that the engine does not run.
  bool begin(InFlightStep& step, Picoseconds at) override;
  void finish(InFlightStep& step) override;

  // After the last step: awaits what still runs and carries out what is left of the last plan.
  void end();
  [[nodiscard]] StepLane& lane() { return *lane_; }
  [[nodiscard]] const StepExecutor& executor() const { return executor_; }

 private:
  static constexpr std::int64_t kNotStarted = -1;  // in handed_blocks_: the executor has none of its KV
  void submit(Picoseconds nominal, bool is_step);
  void add_row(const StepEntry& entry);
  void inspect() const;
  [[nodiscard]] std::vector<TakenBlock> blocks_from(const Request& r, std::int64_t first) const;

  const ServeSetup& setup_;
  StepExecutor executor_;
  std::unique_ptr<StepLane> lane_;
  const ReplicaState* state_ = nullptr;
  std::vector<BlockId> split_;  // since the latest job
  StepJob job_;                 // being put together
  std::deque<bool> handed_;     // jobs whose output is not taken yet: is it a step?
  // The blocks that the executor knows of a request after the jobs handed over so far, by request number.
  std::unordered_map<std::uint64_t, std::int64_t> handed_blocks_;
};

// The lane's clock.
class LaneClock final : public Clock {
 public:
  explicit LaneClock(std::function<void()> each_turn) : each_turn_(std::move(each_turn)) {}
  // Time 0 is now.
  void start(StepLane& lane);
  void reach(Picoseconds at) override;
  [[nodiscard]] Picoseconds now(Picoseconds at) override;

 private:
  std::function<void()> each_turn_;
  StepLane* lane_ = nullptr;
};

}  // namespace kvlab
