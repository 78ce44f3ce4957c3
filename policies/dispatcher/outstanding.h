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

}  // namespace kvlab
