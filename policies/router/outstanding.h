#pragma once

#include <cstdint>

#include "policies/router/router.h"

namespace kvlab {

// Requests a replica has and has not finished.
inline std::int64_t outstanding(const FleetView& fleet, std::uint32_t replica) {
  const ReplicaLoad load = fleet.load(ReplicaId{replica});
  return load.waiting + load.running;
}

}  // namespace kvlab
