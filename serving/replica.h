#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "serving/decode_stretch.h"
#include "serving/device.h"
#include "serving/event_queue.h"
#include "serving/host_setup.h"
#include "serving/rank.h"
#include "serving/totals.h"
#include "serving/transfers.h"

namespace kvlab {

// Objects that all replicas of a run share.
struct FleetContext {
  const HostSetup& setup;
  EventQueue& queue;
  Clock& clock;
  RunSink& sink;
  LogHistogram& itl;
  Transfers& transfers;
};

// One replica, or one of its ranks where these do not wait for each other. It plans steps while there is room in the pipeline, hands them
// to the device and processes their outputs. It tells the event queue when its next output or plan is due, and catches up with any instant
// on demand. Ranks that step together plan at one instant; if one of them has work, all of them run a step, with the same start and end.
class Replica {
 public:
  // devices: one for each rank; first_rank: the number of the first among the ranks of all replicas.
  Replica(const FleetContext& fleet, const PoolSetup& pool, std::uint32_t first_rank, std::vector<std::unique_ptr<Device>> devices);

  // Carries out whatever happens before the phase kArrive of `at` (with_plans: up to and including kSchedule).
  void catch_up(Picoseconds at, bool with_plans);
  // A request for the rank of that number among all; catch_up(at) came before. arrival: it may have been held back since then.
  // prefix: as of ReplicaState::receive().
  void receive(const TraceRequest& request, Time arrival, std::uint32_t rank, Picoseconds at, bool prefill_only = false,
               std::optional<KvOffer>&& prefix = {});
  // A request whose KV another rank offers; likewise.
  void receive_import(const Request& from, KvOffer offer, std::uint32_t rank, Picoseconds at);
  // An export of that rank continues here.
  void rejoin(RequestId slot, std::uint32_t rank, Picoseconds at);
  // The memory of an export of that rank goes back; catch_up(at) came before.
  void release_export(RequestId slot, std::uint32_t rank, Picoseconds at);
  // An export of that rank leaves finally, rejected; likewise.
  void refuse_export(RequestId slot, std::uint32_t rank, Picoseconds at, const char* reason);
  // True: no step is skipped, so that each of them is an event; catch_up(at) came before.
  void set_watched(bool is_watched);
  // Outputs that were processed so far.
  [[nodiscard]] std::uint64_t num_outputs() const { return num_outputs_; }
  // kOutput, kPlan, kSwapEnd, kImportEnd and kStoreEnd events of this replica.
  void handle(const Event& event, Picoseconds next_arrival);

  [[nodiscard]] std::vector<std::unique_ptr<Rank>>& ranks() { return ranks_; }
  [[nodiscard]] std::uint32_t num_ranks() const { return static_cast<std::uint32_t>(ranks_.size()); }
  [[nodiscard]] std::uint32_t first_rank() const { return first_rank_; }
  [[nodiscard]] const Rank& rank(std::uint32_t number) const { return *ranks_[number - first_rank_]; }
  [[nodiscard]] Rank& rank(std::uint32_t number) { return *ranks_[number - first_rank_]; }
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
  Picoseconds start_import(Rank& rank, const SwapCopy& copy, Picoseconds at);
  Picoseconds start_prefix(Rank& rank, const SwapCopy& copy, const KvOffer& offer, Picoseconds at);
  void start_writes(Rank& rank, Picoseconds at);
  void end_copy(const Event& event);
  void begin_anew(const Rank& rank, Picoseconds at);
  void end_stretch();
  void plan_anew(const Rank& rank, Picoseconds at);
  void schedule_next();
  void wake_at(Picoseconds at);
  void tell_scheduler(Rank& rank);
  void forward_events(Rank& rank);

  // replica_fast_forward.cpp
  void look_ahead();
  void carry_out(std::int64_t iterations);
  void advance_memory(std::int64_t iterations, Int128 whole);
  void repeat_memory(std::int64_t iterations);
  void add_gaps(std::int64_t iterations, std::uint64_t counted);
  void move_steps(std::int64_t iterations);
  [[nodiscard]] Picoseconds iteration_time(std::int64_t i);
  [[nodiscard]] StretchGaps stretch_gaps(std::int64_t iterations);
  [[nodiscard]] Picoseconds policy_time(std::int64_t iterations);
  [[nodiscard]] std::int64_t iterations_before(Picoseconds at, bool inclusive);
  [[nodiscard]] bool all_uniform();
  [[nodiscard]] bool waits_for_device(const DecodeTimes& times, std::int64_t iterations);

  const PoolSetup& pool_;
  EventQueue& queue_;
  Clock& clock_;
  RunSink& sink_;
  LogHistogram& itl_;
  Transfers& transfers_;
  std::uint32_t first_rank_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Rank& first_;  // the only one where steps are looked ahead
  Device::Traits traits_;
  int depth_;
  int head_ = 0, count_ = 0;
  DecodeStretch stretch_;
  bool fast_forward_, wants_steps_, wants_events_;
  bool is_watched_ = false;
  bool plan_pending_ = false;          // a kPlan event is queued
  std::uint32_t generation_ = 0;       // of the queued kOutput event
  std::uint32_t wake_generation_ = 0;  // of the latest kPlan event that a scheduler asked for
  std::uint64_t next_step_ = 0, num_outputs_ = 0;
  Picoseconds last_output_;
  Picoseconds copies_end_;  // of the copies since the latest step was planned that the next one waits for
  StepTotals totals_;
};

}  // namespace kvlab
