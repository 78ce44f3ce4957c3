#pragma once

#include <span>

#include "bindings/policies/requests.h"
#include "policies/dispatcher/dispatcher.h"

namespace kvlab {

// For one Python call. Requires the GIL.
nb::list lend_replicas(const FleetView& fleet, std::span<const ReplicaId> among, const LeasePtr& lease);
bool is_replica(nb::handle object);
ReplicaId replica_of(nb::handle replica);

void bind_replicas(nb::module_& m);

}  // namespace kvlab
