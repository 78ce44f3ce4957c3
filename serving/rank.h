#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "serving/device.h"
#include "serving/host_setup.h"
#include "serving/replica_state.h"
#include "serving/step.h"

namespace kvlab {

// A scheduler with the queues, the KV memory and the device that it plans for. A replica has one, or with data parallelism several.
struct Rank {
  // number: among the ranks of all replicas.
  Rank(const HostSetup& setup, const PoolSetup& pool, std::uint32_t number, std::unique_ptr<Device> its_device);

  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<Device> device;
  ReplicaState state;
  std::vector<InFlightStep> ring;  // its steps in flight, and room for the next ones
  std::vector<RequestEventRecord> events;
};

}  // namespace kvlab
