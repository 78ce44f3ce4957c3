#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/picoseconds.h"
#include "engine/serve/executor.h"
#include "engine/serve/serve.h"
#include "serving/device.h"

namespace kvlab {

// Outputs come in order.
class StepLane {
 public:
  struct Output {
    Picoseconds start{}, end{};
  };
  virtual ~StepLane() = default;
  // Time 0.
  virtual void start() = 0;
  [[nodiscard]] virtual Picoseconds now() = 0;
  // May return a tenth of a second early.
  virtual void wait_until(Picoseconds at) = 0;
  // `nominal`: the duration on a made-up clock.
  virtual void submit(StepJob job, Picoseconds nominal) = 0;
  // Waits for the oldest job. Rethrows its exception.
  virtual Output wait_output() = 0;
};

// Runs steps on a lane, as jobs. A job sees earlier ones done, so a copy is done once submitted.
class EngineDevice final : public Device {
 public:
  // Errors as StepExecutor.
  explicit EngineDevice(const ServeSetup& setup);
  ~EngineDevice() override;

  [[nodiscard]] Traits traits() const override;
  void attach(ReplicaState& state, const Scheduler& scheduler) override;
  void on_receive(const TraceRequest& request, RequestId r) override;
  void on_event(const EventRecord& event) override;
  Picoseconds copy(const SwapCopy& copy, Picoseconds at) override;
  // Throws InputError for unsupported plans.
  bool begin(InFlightStep& step, Picoseconds at) override;
  void finish(InFlightStep& step) override;

  // Finishes running steps and the last plan.
  void end();
  [[nodiscard]] StepLane& lane() { return *lane_; }
  [[nodiscard]] const StepExecutor& executor() const { return executor_; }

 private:
  static constexpr std::int64_t kNotStarted = -1;  // in handed_blocks_: no KV yet
  void submit(Picoseconds nominal, bool is_step);
  void add_row(const StepEntry& entry);
  void inspect() const;
  [[nodiscard]] std::vector<TakenBlock> blocks_from(const Request& r, std::int64_t first) const;

  const ServeSetup& setup_;
  StepExecutor executor_;
  std::unique_ptr<StepLane> lane_;
  const ReplicaState* state_ = nullptr;
  std::vector<BlockId> split_;  // since the last job
  StepJob job_;                 // in preparation
  std::deque<bool> handed_;     // without output: is it a step?
  // Known to the executor after all jobs, by request number.
  std::unordered_map<std::uint64_t, std::int64_t> handed_blocks_;
};

class LaneClock final : public Clock {
 public:
  explicit LaneClock(std::function<void()> each_turn) : each_turn_(std::move(each_turn)) {}
  // Sets time 0.
  void start(StepLane& lane);
  void reach(Picoseconds at) override;
  [[nodiscard]] Picoseconds now(Picoseconds at) override;

 private:
  std::function<void()> each_turn_;
  StepLane* lane_ = nullptr;
};

}  // namespace kvlab
