#pragma once

#include <memory>
#include <vector>

#include "serving/decode_stretch.h"
#include "serving/device.h"
#include "serving/event_queue.h"
#include "serving/host_setup.h"
#include "serving/rank.h"
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

// One replica, or one of its ranks where these do not wait for each other. It plans steps while there is room in the pipeline, hands them
// to the device and processes their outputs. It tells the event queue when its next output or plan is due, and catches up with any instant
// on demand. Ranks that step together plan at one instant; if one of them has work, all of them run a step, with the same start and end.
class Replica {
 public:
  // devices: one for each rank; first_rank: the number of the first among the ranks of all replicas.
  Replica(const FleetContext& fleet, std::uint32_t first_rank, std::vector<std::unique_ptr<Device>> devices);

  // Carries out whatever happens before the phase kArrive of `at` (with_plans: up to and including kSchedule).
  void catch_up(Picoseconds at, bool with_plans);
  // An arriving request for the rank of that number among all; catch_up(at) came before.
  void receive(const TraceRequest& request, std::uint32_t rank, Picoseconds at);
  // kOutput, kPlan and kSwapEnd events of this replica.
  void handle(const Event& event, Picoseconds next_arrival);

  [[nodiscard]] std::vector<std::unique_ptr<Rank>>& ranks() { return ranks_; }
  [[nodiscard]] const Rank& rank(std::uint32_t number) const { return *ranks_[number - first_rank_]; }
  // The sum over its ranks.
  [[nodiscard]] const StepTotals& totals() const { return totals_; }
  // Time that counted steps still in flight occupy after `end`, summed over the ranks.
  [[nodiscard]] Picoseconds busy_after(Picoseconds end);
  [[nodiscard]] Picoseconds last_output() const { return last_output_; }

 private:
  [[nodiscard]] InFlightStep& in_flight(Rank& rank, int i) { return rank.ring[static_cast<std::size_t>((head_ + i) % depth_)]; }
  // Steps that begin together have equal times: those of the first rank are read.
  [[nodiscard]] InFlightStep& in_flight(int i) { return in_flight(first_, i); }
  [[nodiscard]] bool has_output() const;
  void process_oldest(Picoseconds at);
  void queue_plan(Picoseconds at);
  void plan(Picoseconds at);
  bool plan_one(Picoseconds at);
  Picoseconds plan_rank(Rank& rank, Picoseconds at);
  void begin(Picoseconds planned, Picoseconds ready);
  void count_steps(int i, Picoseconds before);
  Picoseconds start_copies(Rank& rank, Picoseconds at);
  void schedule_next();
  void wake_at(Picoseconds at);
  void tell_scheduler(Rank& rank);
  void forward_events(Rank& rank);

  // replica_fast_forward.cpp
  void look_ahead();
  void carry_out(std::int64_t iterations);
  void move_steps(std::int64_t iterations);
  [[nodiscard]] Picoseconds iteration_time(std::int64_t i);
  [[nodiscard]] StretchGaps stretch_gaps(std::int64_t iterations);
  [[nodiscard]] std::int64_t iterations_before(Picoseconds at, bool inclusive);
  [[nodiscard]] bool all_uniform();
  [[nodiscard]] bool waits_for_device(const DecodeTimes& times, std::int64_t iterations);

  const HostSetup& setup_;
  EventQueue& queue_;
  Clock& clock_;
  RunSink& sink_;
  LogHistogram& itl_;
  std::uint32_t first_rank_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Rank& first_;  // the only one where steps are looked ahead
  Device::Traits traits_;
  int depth_;
  int head_ = 0, count_ = 0;
  DecodeStretch stretch_;
  bool fast_forward_, wants_steps_, wants_events_;
  bool plan_pending_ = false;          // a kPlan event is queued
  std::uint32_t generation_ = 0;       // of the queued kOutput event
  std::uint32_t wake_generation_ = 0;  // of the latest kPlan event that a scheduler asked for
  std::uint64_t next_step_ = 0;
  Picoseconds last_output_;
  StepTotals totals_;
};

}  // namespace kvlab
