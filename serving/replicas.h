#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "policies/dispatcher/dispatcher.h"
#include "serving/fast_forward.h"
#include "serving/rank.h"

namespace kvlab {

// A replica, or one of its ranks if these are independent. It plans while the pipeline has room. Ranks that step together plan at one
// instant; if one has work, all run a step with the same start and end.
class Replica {
 public:
  // One device per rank. first_rank: over all replicas.
  Replica(const FleetContext& fleet, const PoolSetup& pool, std::uint32_t first_rank, std::vector<std::unique_ptr<Device>> devices);

  // Handles everything before phase kArrive of `at` (with_plans: through kSchedule).
  void catch_up(Picoseconds at, bool with_plans);
  // After catch_up(at): the rank has received a request or an import.
  void note_input(const Rank& rank, Picoseconds at);
  // After catch_up(at): memory of the rank has come back, or a request that continues in it.
  void note_return(const Rank& rank, Picoseconds at);
  // True: no step is skipped. Call after catch_up(at).
  void set_watched(bool is_watched);
  // Store contents may change at `at`: later plans are not repeated.
  void end_repeated_plans(Picoseconds at);
  void handle(const Event& event, Picoseconds next_arrival);

  [[nodiscard]] const std::vector<std::unique_ptr<Rank>>& ranks() const { return ranks_; }
  [[nodiscard]] std::uint32_t num_ranks() const { return static_cast<std::uint32_t>(ranks_.size()); }
  [[nodiscard]] std::uint32_t first_rank() const { return first_rank_; }
  [[nodiscard]] Rank& rank(std::uint32_t number) const { return *ranks_[number - first_rank_]; }
  [[nodiscard]] const WorkDone& done() const { return done_; }
  // Time of counted steps in flight after `end`, summed over the ranks.
  [[nodiscard]] Picoseconds busy_after(Picoseconds end);

 private:
  void process_oldest(Picoseconds at);
  void queue_plan(Picoseconds at);
  void plan(Picoseconds at, Picoseconds next_arrival);
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
  Rank& first_;  // its times are those of all ranks that step together
  WorkDone done_;
  FastForward ahead_;
  bool is_piped_;
  bool may_skip_steps_;
  bool is_only_;  // all arrivals come here
  bool is_watched_ = false;
  bool plan_pending_ = false;          // a kPlan event is queued
  std::uint32_t generation_ = 0;       // of the queued kOutput event
  std::uint32_t wake_generation_ = 0;  // of the latest kPlan event from a scheduler
  Picoseconds copies_end_;             // of copies since the latest plan that the next step waits for
};

// All replicas, pool by pool. Replicas are numbered over all pools, ranks over all replicas.
class Replicas {
 public:
  Replicas(const FleetContext& fleet, const MakeDevice& make_device);

  struct Place {
    std::uint32_t pool = 0;
    std::uint32_t first_rank = 0, ranks = 1;
    LoadBalance load_balance = LoadBalance::kVllm;
    std::uint32_t num_sent = 0;  // requests, by take_rank
  };
  [[nodiscard]] std::uint32_t num_replicas() const { return static_cast<std::uint32_t>(places_.size()); }
  [[nodiscard]] std::uint32_t num_ranks() const { return static_cast<std::uint32_t>(of_rank_.size()); }
  [[nodiscard]] const Place& place(ReplicaId replica) const { return places_[index(replica)]; }
  [[nodiscard]] ReplicaId replica_of(std::uint32_t rank) const { return of_rank_[rank].replica; }
  // The ranks that step together, or the only one.
  [[nodiscard]] Replica& unit(std::uint32_t rank) { return *units_[of_rank_[rank].unit]; }
  [[nodiscard]] const Replica& unit(std::uint32_t rank) const { return *units_[of_rank_[rank].unit]; }
  [[nodiscard]] const std::vector<std::unique_ptr<Replica>>& units() const { return units_; }
  [[nodiscard]] const ReplicaState& state(std::uint32_t rank) const { return unit(rank).rank(rank).state; }
  [[nodiscard]] ReplicaState& state(std::uint32_t rank) { return unit(rank).rank(rank).state; }

  // Null: no store.
  [[nodiscard]] NodeStore* store(ReplicaId replica) { return stores_[index(replica)].get(); }
  [[nodiscard]] const NodeStore* store(ReplicaId replica) const { return stores_[index(replica)].get(); }

  [[nodiscard]] ReplicaLoad load(ReplicaId replica) const;
  [[nodiscard]] bool is_empty(ReplicaId replica) const;
  // The next request's rank by the pool's load balance.
  [[nodiscard]] std::uint32_t choose_rank(ReplicaId replica) const;
  // The same for a request sent now: advances round robin.
  std::uint32_t take_rank(ReplicaId replica);
  // Tokens in KV blocks held by requests, and uncomputed tokens of queued prompts. O(running requests).
  [[nodiscard]] std::int64_t total_tokens(ReplicaId replica) const;
  template <class Visit>
  void each_unit(ReplicaId replica, Visit&& visit) {
    const Place& its = place(replica);
    for (std::uint32_t rank = its.first_rank; rank < its.first_rank + its.ranks; rank += unit(rank).num_ranks()) visit(unit(rank));
  }

 private:
  struct OfRank {
    ReplicaId replica{};
    std::uint32_t unit = 0;
  };
  void add_store(const StoreSetup& setup, const PoolSetup& pool);
  std::vector<Place> places_;
  std::vector<OfRank> of_rank_;
  std::vector<std::unique_ptr<Replica>> units_;
  std::vector<std::unique_ptr<NodeStore>> stores_;  // by replica
};

}  // namespace kvlab
