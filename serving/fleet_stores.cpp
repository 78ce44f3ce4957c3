// Prompts in the stores of replicas, and the requests that take them.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/ceil_div.h"
#include "serving/fleet.h"

namespace kvlab {

// The first tokens of the prompt that are in stores but not in the rank's block cache: those of the replica's own store, then those of
// placement.fetch_from. Their blocks stay in the stores until the copy has ended.
std::optional<KvOffer> Fleet::offer_prefix(const TraceRequest& prompt, const Placement& placement, std::uint32_t rank, Picoseconds at) {
  NodeStore* const own = replicas_.store(placement.replica);
  if (own == nullptr) return std::nullopt;
  NodeStore* const other = placement.fetch_from == kNoReplica ? nullptr : replicas_.store(placement.fetch_from);
  Replica& replica = replicas_.unit(rank);
  replica.catch_up(at, false);
  collect(replica, at);
  const ReplicaMemory& memory = state(rank).memory();
  const std::int64_t own_blocks = own->leading_blocks(prompt);
  const std::int64_t found = std::max(own_blocks, other == nullptr ? 0 : other->leading_blocks(prompt));
  const std::int64_t tokens = std::min<std::int64_t>(found * own->block_tokens(), memory.most_cached_tokens(prompt));
  if (tokens <= memory.cached_tokens(prompt)) return std::nullopt;
  const std::int64_t blocks = ceil_div(tokens, own->block_tokens());
  KvOffer offer;
  offer.is_prefix = true;
  offer.tokens = static_cast<std::int32_t>(tokens);
  offer.to_replica = index(placement.replica);
  offer.own_blocks = own->pin(prompt, 0, std::min(blocks, own_blocks));
  offer.replica = blocks > own_blocks ? index(placement.fetch_from) : offer.to_replica;
  offer.rank = replicas_.place(ReplicaId{offer.replica}).first_rank;
  if (blocks > own_blocks) offer.blocks = other->pin(prompt, own_blocks, blocks);
  return offer;
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

// Every reference to a block of a store is that of a request on its way or of a write.
void Fleet::check_stores() const {
  if (!setup_.store.is_on()) return;
  std::vector<std::int64_t> pinned(replicas_.num_replicas(), 0);
  for (std::uint32_t rank = 0; rank < replicas_.num_ranks(); ++rank) {
    pinned[index(replicas_.replica_of(rank))] += state(rank).memory().pinned_by_writes();
    for (const auto& [slot, offer] : state(rank).handover().offers()) {
      if (!offer.is_prefix) continue;
      pinned[offer.to_replica] += std::ssize(offer.own_blocks);
      pinned[offer.replica] += std::ssize(offer.blocks);
    }
  }
  for (std::uint32_t i = 0; i < replicas_.num_replicas(); ++i)
    if (const NodeStore* const store = replicas_.store(ReplicaId{i}); store != nullptr) store->check(pinned[i]);
}

}  // namespace kvlab
