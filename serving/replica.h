#pragma once

#include <memory>
#include <vector>

#include "serving/decode_stretch.h"
#include "serving/device.h"
#include "serving/event_queue.h"
#include "serving/host_setup.h"
#include "serving/replica_state.h"
#include "serving/totals.h"

namespace kvlab {

// Objects that all replicas of a run share.
struct FleetContext {
  const HostSetup& setup;
  EventQueue& queue;
  Clock& clock;
  RunSink& sink;
  LogHistogram& itl;
};

// One replica: its state, its scheduler and its device. It plans steps while there is room in the pipeline, hands them to the device and
// processes their outputs. It tells the event queue when its next output or plan is due, and catches up with any instant on demand.
class Replica {
 public:
  Replica(const FleetContext& fleet, std::uint32_t number, std::unique_ptr<Device> device);

  // Carries out whatever happens before the phase kArrive of `at` (with_plans: up to and including kSchedule).
  void catch_up(Picoseconds at, bool with_plans);
  // An arriving request; catch_up(at) came before.
  void receive(const TraceRequest& request, Picoseconds at);
  // kOutput, kPlan and kSwapEnd events of this replica.
  void handle(const Event& event, Picoseconds next_arrival);

  ReplicaState& state() { return state_; }
  [[nodiscard]] const ReplicaState& state() const { return state_; }
  [[nodiscard]] const Device& device() const { return *device_; }
  [[nodiscard]] const StepTotals& totals() const { return totals_; }
  // Time that counted steps still in flight occupy after `end`.
  [[nodiscard]] Picoseconds busy_after(Picoseconds end);
  [[nodiscard]] Picoseconds last_output() const { return last_output_; }

 private:
  [[nodiscard]] InFlightStep& in_flight(int i) { return ring_[static_cast<std::size_t>((head_ + i) % depth_)]; }
  void process_oldest(Picoseconds at);
  void queue_plan(Picoseconds at);
  void plan(Picoseconds at);
  bool plan_one(Picoseconds at);
  void count_step(InFlightStep& step, Picoseconds before);
  Picoseconds start_copies(Picoseconds at);
  void schedule_next();
  void wake_at(Picoseconds at);
  void tell_scheduler();
  void forward_events();

  // replica_fast_forward.cpp
  void look_ahead();
  void carry_out(std::int64_t iterations);
  void move_steps(std::int64_t iterations);
  [[nodiscard]] Picoseconds iteration_time(std::int64_t i);
  [[nodiscard]] std::int64_t iterations_before(Picoseconds at, bool inclusive);
  [[nodiscard]] bool all_uniform();
  [[nodiscard]] bool waits_for_device(const DecodeTimes& times, std::int64_t iterations);

  const HostSetup& setup_;
  EventQueue& queue_;
  Clock& clock_;
  RunSink& sink_;
  LogHistogram& itl_;
  std::uint32_t number_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Device> device_;
  Device::Traits traits_;
  int depth_;
  ReplicaState state_;
  std::vector<InFlightStep> ring_;
  int head_ = 0, count_ = 0;
  DecodeStretch stretch_;
  std::vector<RequestEventRecord> events_;
  bool fast_forward_, wants_steps_, wants_events_;
  bool plan_pending_ = false;          // a kPlan event is queued
  std::uint32_t generation_ = 0;       // of the queued kOutput event
  std::uint32_t wake_generation_ = 0;  // of the latest kPlan event that a scheduler asked for
  std::uint64_t next_step_ = 0;
  Picoseconds last_output_;
  StepTotals totals_;
};

}  // namespace kvlab
