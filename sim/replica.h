#pragma once

#include <memory>
#include <vector>

#include "serving/replica_state.h"
#include "sim/event_queue.h"
#include "sim/link.h"
#include "sim/pricing.h"
#include "sim/simulation.h"
#include "sim/span.h"
#include "sim/totals.h"

namespace kvlab {

// One simulated replica: its state, its scheduler, and the timing of its steps. It tells the event queue when its next
// output or plan is due, and catches up with any instant on demand.
class SimReplica {
 public:
  SimReplica(const SimSetup& setup, std::uint32_t number, EventQueue& queue, RunSink& sink, LogHistogram& itl);

  // Carries out whatever happens before the phase kArrive of `at` (with_plans: up to and including kSchedule).
  void catch_up(Picoseconds at, bool with_plans);
  // An arriving request; catch_up(at) came before.
  void receive(const TraceRequest& request, std::uint64_t number, Picoseconds at, bool keeps_hashes);
  // kOutput, kPlan and kSwapEnd events of this replica.
  void handle(const Event& event, Picoseconds next_arrival);

  ReplicaState& state() { return state_; }
  [[nodiscard]] const ReplicaState& state() const { return state_; }
  [[nodiscard]] const StepTotals& totals() const { return totals_; }
  [[nodiscard]] Picoseconds busy_after(Picoseconds end);
  [[nodiscard]] CostModel& cost() { return *cost_; }
  [[nodiscard]] Picoseconds last_output() const { return last_output_; }

 private:
  [[nodiscard]] InFlightStep& in_flight(int i) { return ring_[static_cast<std::size_t>((head_ + i) % depth_)]; }
  void process_oldest(Picoseconds at);
  void plan(Picoseconds at);
  bool plan_one(Picoseconds at);
  void time_step(InFlightStep& step, Picoseconds at, const StepCost& cost);
  void count_step(const InFlightStep& step, const StepCost& cost);
  Picoseconds start_copies(Picoseconds at);
  void schedule_next();
  void wake_at(Picoseconds at);
  void tell_sink(const InFlightStep& step);
  void forward_events();

  // replica_fast_forward.cpp
  void look_ahead();
  void carry_out(std::int64_t iterations);
  [[nodiscard]] Picoseconds iteration_time(std::int64_t i);
  [[nodiscard]] std::int64_t iterations_before(Picoseconds at, bool inclusive);
  [[nodiscard]] bool all_uniform();

  const SimSetup& setup_;
  std::uint32_t number_;
  EventQueue& queue_;
  RunSink& sink_;
  LogHistogram& itl_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<CostModel> cost_;
  int num_stages_;
  int depth_;
  ReplicaState state_;
  StepPricer pricer_;
  Link to_host_, from_host_;
  StepPlan plan_;
  std::vector<InFlightStep> ring_;
  int head_ = 0, count_ = 0;
  DecodeStretch stretch_;
  std::vector<Picoseconds> stage_free_, stage_times_;
  std::vector<RequestEventRecord> events_;
  StepRecord record_;
  bool fast_forward_, wants_steps_;
  bool plan_pending_ = false;          // a kPlan event is queued
  std::uint32_t generation_ = 0;       // of the queued kOutput event
  std::uint32_t wake_generation_ = 0;  // of the latest kPlan event that a scheduler asked for
  std::uint64_t next_step_ = 0;
  Picoseconds last_output_ = 0;
  StepTotals totals_;
};

}  // namespace kvlab
