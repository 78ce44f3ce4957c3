#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "policies/dispatcher/dispatcher.h"
#include "serving/replica.h"

namespace kvlab {

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
