#pragma once

#include <cstdint>
#include <utility>

#include "policies/dispatcher/outstanding.h"

namespace kvlab {

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
