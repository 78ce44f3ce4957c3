// Copies of prompts between a replica's GPU memory and stores in CPU memory: its own over its link to CPU memory, those of other replicas
// over the links between replicas.
#include <algorithm>
#include <cstdint>

#include "base/ceil_div.h"
#include "serving/replica.h"

namespace kvlab {

// The blocks that the request takes from stores: the first ones from its own, the others from another replica's. Both copies go at once.
// Returns when all are here. A block of a store is copied in one call.
Picoseconds Replica::start_prefix(Rank& rank, const SwapCopy& copy, const KvOffer& offer, Picoseconds at) {
  const Request& r = rank.state.table()[copy.request];
  ReplicaMemory& memory = rank.state.memory();
  const std::int64_t all = memory.blocks_for(r.computed_tokens), cached = all - copy.blocks;
  const std::int64_t ratio = memory.store->block_tokens() / memory.limits().block_tokens;
  const std::int64_t own_end = std::min(all, std::ssize(offer.own_blocks) * ratio), other_begin = std::max(cached, own_end);
  const auto calls = [&](std::int64_t begin, std::int64_t end) { return ceil_div(end, ratio) - begin / ratio; };
  Picoseconds end = at;
  if (own_end > cached) {
    memory.store->use().loaded_bytes += (own_end - cached) * pool_.memory.block_bytes;
    SwapCopy own{copy.request, own_end - cached, false, calls(cached, own_end)};
    own.is_stored = true;
    end = rank.device->copy(own, at);
  }
  const std::int64_t blocks = all - other_begin;
  if (blocks <= 0) return end;
  const KvFetch fetch{offer.replica, offer.to_replica, blocks, blocks * pool_.memory.block_bytes, blocks, at, at, calls(other_begin, all)};
  const Transfers::Times times = transfers_.begin(fetch, at);
  sink_.transfer({r.number, offer.rank, memory.limits().replica, r.computed_tokens, fetch.bytes, times.calls, to_time(at), to_time(at),
                  to_time(times.end)});
  return std::max(end, times.end);
}

// Prompts that the latest output completed go to the store.
void Replica::start_writes(Rank& rank, Picoseconds at) {
  for (const SwapCopy& copy : rank.state.store_copies())
    queue_.push(rank.device->copy(copy, at), Phase::kComplete, EventKind::kStoreEnd, rank.state.memory().limits().replica,
                index(copy.request));
  rank.state.store_copies().clear();
}

}  // namespace kvlab
