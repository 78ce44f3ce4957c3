#pragma once

#include <cstdint>
#include <utility>

#include "policies/dispatcher/outstanding.h"

namespace kvlab {

// No request waits or runs there. It makes no step, so that a request held for it would never be asked for again.
inline bool is_idle(const FleetView& fleet, ReplicaId replica) { return outstanding(fleet, replica) == 0; }

// Blocks that no request holds and that its queue will not take either; below 0 if the queue will take more than are free. O(queued).
inline std::int64_t room(const FleetView& fleet, ReplicaId replica) {
  const ReplicaLoad load = fleet.load(replica);
  return load.num_blocks - load.used_blocks - fleet.queued_blocks(replica);
}

// Prefill: the replica with the fewest prompt tokens still to compute; of equals the one with fewer requests, then the first.
inline ReplicaId fewest_prompt_tokens(std::span<const ReplicaId> among, const FleetView& fleet) {
  return least_of(among, [&](ReplicaId replica) {
    const ReplicaLoad load = fleet.load(replica);
    return std::pair(load.outstanding_tokens, load.waiting + load.running);
  });
}

}  // namespace kvlab
