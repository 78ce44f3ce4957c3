#include "serving/replicas.h"

#include <algorithm>
#include <utility>

namespace kvlab {

namespace {

// As SGLang's num_tokens (python/sglang/srt/managers/scheduler.py, get_load): KV tokens in use and waiting prompts. A chunked prompt counts
// for its computed part.
std::int64_t tokens_of(const ReplicaState& rank) {
  std::int64_t queued = rank.table().outstanding_prompt_tokens();
  for (const RequestId r : rank.running()) {
    const Request& running = rank.table()[r];
    queued -= std::max(0, running.prompt_tokens - running.computed_tokens);
  }
  return rank.used_blocks() * rank.block_tokens() + queued;
}

// Lower is better; the second breaks ties.
std::pair<std::int64_t, std::int64_t> load_of(const ReplicaState& rank, LoadBalance balance) {
  constexpr std::int64_t kWaitingWeight = 4;  // vLLM
  const std::int64_t queued = rank.queues().num_queued(), running = static_cast<std::int64_t>(rank.running().size());
  if (balance == LoadBalance::kTotalTokens) return {tokens_of(rank), queued + running};
  return {(balance == LoadBalance::kVllm ? kWaitingWeight : 1) * queued + running, 0};
}

}  // namespace

Replicas::Replicas(const FleetContext& fleet, const MakeDevice& make_device) {
  for (std::uint32_t p = 0; p < fleet.setup.num_pools(); ++p) {
    const PoolSetup& pool = fleet.setup.pool(p);
    const std::uint32_t together = pool.steps_together ? pool.ranks : 1;
    for (std::uint32_t i = 0; i < pool.num_replicas; ++i) {
      const ReplicaId replica{num_replicas()};
      places_.push_back({p, num_ranks(), pool.ranks, pool.load_balance});
      for (std::uint32_t j = 0; j < pool.ranks; j += together) {
        std::vector<std::unique_ptr<Device>> devices;
        for (std::uint32_t k = 0; k < together; ++k) devices.push_back(make_device(p));
        units_.push_back(std::make_unique<Replica>(fleet, pool, num_ranks(), std::move(devices)));
        of_rank_.insert(of_rank_.end(), together, {replica, static_cast<std::uint32_t>(units_.size() - 1)});
      }
      add_store(fleet.setup.store, pool);
    }
  }
}

// For the latest replica, if its pool has a store.
void Replicas::add_store(const StoreSetup& setup, const PoolSetup& pool) {
  const Place& its = places_.back();
  const bool has_one = setup.is_on() && pool.store_blocks > 0 && state(its.first_rank).memory().limits().prefix_caching;
  stores_.push_back(has_one ? std::make_unique<NodeStore>(pool.store_blocks, setup.block_tokens, setup.make_eviction()) : nullptr);
  for (std::uint32_t rank = its.first_rank; rank < its.first_rank + its.ranks; ++rank) state(rank).memory().store = stores_.back().get();
}

ReplicaLoad Replicas::load(ReplicaId replica) const {
  const Place& its = place(replica);
  ReplicaLoad load;
  for (std::uint32_t rank = its.first_rank; rank < its.first_rank + its.ranks; ++rank) {
    const ReplicaState& of = state(rank);
    load.waiting += of.queues().num_queued();
    load.running += static_cast<std::int64_t>(of.running().size());
    load.outstanding_tokens += of.table().outstanding_prompt_tokens() - of.transits().expected_tokens();
    load.used_blocks += of.used_blocks();
    load.num_blocks += of.num_blocks();
  }
  return load;
}

bool Replicas::is_empty(ReplicaId replica) const {
  const Place& its = place(replica);
  for (std::uint32_t rank = its.first_rank; rank < its.first_rank + its.ranks; ++rank)
    if (state(rank).table().live() > 0) return false;
  return true;
}

std::int64_t Replicas::total_tokens(ReplicaId replica) const {
  const Place& its = place(replica);
  std::int64_t tokens = 0;
  for (std::uint32_t rank = its.first_rank; rank < its.first_rank + its.ranks; ++rank) tokens += tokens_of(state(rank));
  return tokens;
}

// A request just sent to a rank counts as waiting.
std::uint32_t Replicas::choose_rank(ReplicaId replica) const {
  const Place& its = place(replica);
  if (its.ranks == 1) return its.first_rank;
  if (its.load_balance == LoadBalance::kRoundRobin) return its.first_rank + its.num_sent % its.ranks;
  std::uint32_t best = its.first_rank;
  std::pair least = load_of(state(best), its.load_balance);
  for (std::uint32_t rank = best + 1; rank < its.first_rank + its.ranks; ++rank) {
    const std::pair load = load_of(state(rank), its.load_balance);
    if (!(load < least)) continue;
    best = rank;
    least = load;
  }
  return best;
}

std::uint32_t Replicas::take_rank(ReplicaId replica) {
  const std::uint32_t rank = choose_rank(replica);
  ++places_[index(replica)].num_sent;
  return rank;
}

}  // namespace kvlab
