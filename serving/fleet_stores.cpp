// Prompts in stores, and the requests that take them.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "serving/fleet.h"

namespace kvlab {

// The request's own store, and that of placement.fetch_from. Contents beyond the rank's block cache are an estimate: nothing is reserved.
std::optional<PromptStores> Fleet::stores_of(const TraceRequest& prompt, const Placement& placement, std::uint32_t rank, Picoseconds at) {
  const NodeStore* const own = replicas_.store(placement.replica);
  if (own == nullptr) return std::nullopt;
  PromptStores stores;
  stores.replica = index(placement.replica);
  if (placement.fetch_from != kNoReplica && replicas_.store(placement.fetch_from) != nullptr) {
    stores.other = replicas_.store(placement.fetch_from);
    stores.other_replica = index(placement.fetch_from);
    stores.other_rank = replicas_.place(placement.fetch_from).first_rank;
  }
  Replica& replica = replicas_.unit(rank);
  replica.catch_up(at, false);
  collect(replica, at);
  const KvMemory& memory = state(rank).memory();
  const std::int64_t found = std::max(own->leading_blocks(prompt), stores.other == nullptr ? 0 : stores.other->leading_blocks(prompt));
  const auto tokens = static_cast<std::int32_t>(std::min<std::int64_t>(found * own->block_tokens(), memory.most_cached_tokens(prompt)));
  if (tokens > memory.cached_tokens(prompt)) stores.expected_tokens = tokens;
  return stores;
}

// The store has changed: waiting requests elsewhere may find other blocks.
void Fleet::note_store(const Replica& replica, Picoseconds at) {
  const ReplicaId its = replicas_.replica_of(replica.first_rank());
  const NodeStore* const store = replicas_.store(its);
  if (store == nullptr || store->changes() == std::exchange(stores_seen_[index(its)], store->changes())) return;
  for (const auto& unit : replicas_.units()) unit->end_repeated_plans(at);
}

void Fleet::give_back(const KvOffer& prefix) {
  replicas_.store(ReplicaId{prefix.to_replica})->unpin(prefix.own_blocks);
  if (!prefix.blocks.empty()) replicas_.store(ReplicaId{prefix.replica})->unpin(prefix.blocks);
}

void Fleet::add_stores(ServingSummary& summary) const {
  for (std::uint32_t i = 0; i < replicas_.num_replicas(); ++i) {
    const NodeStore* const store = replicas_.store(ReplicaId{i});
    if (store == nullptr) continue;
    const MemorySetup& memory = setup_.pool(replicas_.place(ReplicaId{i}).pool).memory;
    const std::int64_t block_bytes = store->block_tokens() / memory.block_tokens * memory.block_bytes;
    summary.stores.push_back({i, store->pool().num_blocks(), block_bytes, store->pool().cached_blocks(), store->use(),
                              static_cast<std::int64_t>(store->pool().evictions())});
  }
}

// Conservation: references to store blocks are of requests in transit or writes.
void Fleet::check_stores() const {
  if (!setup_.store.is_on()) return;
  std::vector<std::int64_t> pinned(replicas_.num_replicas(), 0);
  for (std::uint32_t rank = 0; rank < replicas_.num_ranks(); ++rank) {
    pinned[index(replicas_.replica_of(rank))] += state(rank).memory().pinned_by_writes();
    for (const auto& [slot, transit] : state(rank).transits().all()) {
      if (!transit.offer || !transit.offer->is_prefix) continue;
      pinned[transit.offer->to_replica] += std::ssize(transit.offer->own_blocks);
      pinned[transit.offer->replica] += std::ssize(transit.offer->blocks);
    }
  }
  for (std::uint32_t i = 0; i < replicas_.num_replicas(); ++i)
    if (const NodeStore* const store = replicas_.store(ReplicaId{i}); store != nullptr) store->check(pinned[i]);
}

}  // namespace kvlab
