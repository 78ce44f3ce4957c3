#pragma once

#include <cstdint>

#include "policies/dispatcher/dispatcher.h"

namespace kvlab {

// Requests a replica has and has not finished.
inline std::int64_t outstanding(const FleetView& fleet, ReplicaId replica) {
  const ReplicaLoad load = fleet.load(replica);
  return load.waiting + load.running;
}

// The replica with the smallest key(replica); of equals the first.
template <class Key>
ReplicaId least_of(std::span<const ReplicaId> among, Key&& key) {
  ReplicaId best = among.front();
  auto least = key(best);
  for (const ReplicaId replica : among.subspan(1)) {
    const auto mine = key(replica);
    if (!(mine < least)) continue;
    best = replica;
    least = mine;
  }
  return best;
}

}  // namespace kvlab
