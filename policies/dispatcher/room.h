#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "policies/dispatcher/dispatcher.h"

namespace kvlab {

inline std::int64_t outstanding(const FleetView& fleet, ReplicaId replica) {
  const ReplicaLoad load = fleet.load(replica);
  return load.waiting + load.running;
}

// Ties: the first.
template <class Key>
auto least_with(std::span<const ReplicaId> among, Key&& key) {
  std::pair best(among.front(), key(among.front()));
  for (const ReplicaId replica : among.subspan(1))
    if (auto mine = key(replica); mine < best.second) best = {replica, mine};
  return best;
}

template <class Key>
ReplicaId least_of(std::span<const ReplicaId> among, Key&& key) {
  return least_with(among, key).first;
}

// Idle replicas make no step, so held requests would never be asked for again.
inline bool is_idle(const FleetView& fleet, ReplicaId replica) { return outstanding(fleet, replica) == 0; }

// Free blocks less those that its queue will take; may be negative. O(queued).
inline std::int64_t room(const FleetView& fleet, ReplicaId replica) {
  const ReplicaLoad load = fleet.load(replica);
  return load.num_blocks - load.used_blocks - fleet.queued_blocks(replica);
}

// Ties: fewer requests, then the first.
inline ReplicaId fewest_prompt_tokens(std::span<const ReplicaId> among, const FleetView& fleet) {
  return least_of(among, [&](ReplicaId replica) {
    const ReplicaLoad load = fleet.load(replica);
    return std::pair(load.outstanding_tokens, load.waiting + load.running);
  });
}

}  // namespace kvlab
