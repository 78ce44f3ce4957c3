#pragma once

#include <memory>
#include <vector>

#include "serving/fast_forward.h"
#include "serving/rank.h"

namespace kvlab {

// One replica, or one of its ranks where these do not wait for each other. It plans steps while there is room in the pipeline and tells the
// event queue when its next output or plan is due; its ranks do the work. It catches up with any instant on demand. Ranks that step
// together plan at one instant; if one of them has work, all of them run a step, with the same start and end.
class Replica {
 public:
  // devices: one for each rank; first_rank: the number of the first among the ranks of all replicas.
  Replica(const FleetContext& fleet, const PoolSetup& pool, std::uint32_t first_rank, std::vector<std::unique_ptr<Device>> devices);

  // Carries out whatever happens before the phase kArrive of `at` (with_plans: up to and including kSchedule).
  void catch_up(Picoseconds at, bool with_plans);
  // The rank has received a request, by Rank::receive() or as an import; catch_up(at) came before.
  void note_input(const Rank& rank, Picoseconds at);
  // Memory of the rank has come back, or a request that continues in it; catch_up(at) came before.
  void note_return(const Rank& rank, Picoseconds at);
  // True: no step is skipped, so that each of them is an event; catch_up(at) came before.
  void set_watched(bool is_watched);
  // Waiting requests may find other blocks in stores from `at` on: the plans after it are made, not repeated.
  void end_repeated_plans(Picoseconds at);
  // kOutput, kPlan, kSwapEnd, kImportEnd and kStoreEnd events of this replica.
  void handle(const Event& event, Picoseconds next_arrival);

  [[nodiscard]] const std::vector<std::unique_ptr<Rank>>& ranks() const { return ranks_; }
  [[nodiscard]] std::uint32_t num_ranks() const { return static_cast<std::uint32_t>(ranks_.size()); }
  [[nodiscard]] std::uint32_t first_rank() const { return first_rank_; }
  [[nodiscard]] Rank& rank(std::uint32_t number) const { return *ranks_[number - first_rank_]; }
  [[nodiscard]] const WorkDone& done() const { return done_; }
  // Time that counted steps still in flight occupy after `end`, summed over the ranks.
  [[nodiscard]] Picoseconds busy_after(Picoseconds end);

 private:
  void process_oldest(Picoseconds at);
  void queue_plan(Picoseconds at);
  void plan(Picoseconds at);
  bool plan_one(Picoseconds at);
  void begin(Picoseconds planned, Picoseconds ready);
  void count_steps(int i, Picoseconds before);
  void end_copy(const Event& event);
  void end_stretch();
  void schedule_next();
  void wake_at(Picoseconds at);
  [[nodiscard]] bool is_idle() const { return first_.steps.is_empty() && !plan_pending_; }
  [[nodiscard]] bool has_output() const;

  EventQueue& queue_;
  Clock& clock_;
  RunSink& sink_;
  std::uint32_t first_rank_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Rank& first_;  // steps that begin together have equal times: those of the first rank are read
  WorkDone done_;
  FastForward ahead_;
  bool is_piped_;        // in stages, whose steps overlap
  bool may_skip_steps_;  // FastForward::look_ahead() is called
  bool is_watched_ = false;
  bool plan_pending_ = false;          // a kPlan event is queued
  std::uint32_t generation_ = 0;       // of the queued kOutput event
  std::uint32_t wake_generation_ = 0;  // of the latest kPlan event that a scheduler asked for
  Picoseconds copies_end_;             // of the copies since the latest step was planned that the next one waits for
};

}  // namespace kvlab
