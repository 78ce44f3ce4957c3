#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/registry.h"
#include "policies/request.h"

namespace kvlab {

// The load of one replica at this instant, as a router sees it.
struct ReplicaLoad {
  std::int64_t waiting = 0;             // requests queued or about to be
  std::int64_t running = 0;             // requests admitted
  std::int64_t outstanding_tokens = 0;  // prompt tokens still to compute, of all of them
  std::int64_t used_blocks = 0;         // referenced blocks
  std::int64_t num_blocks = 0;
};

class FleetView {
 public:
  virtual ~FleetView() = default;
  [[nodiscard]] virtual std::uint32_t num_replicas() const = 0;
  // Requests that arrived before: the key of random draws.
  [[nodiscard]] virtual std::uint64_t num_arrived() const = 0;
  [[nodiscard]] virtual ReplicaLoad load(ReplicaId replica) const = 0;
  // Tokens of the arriving request's prompt that this replica's prefix cache holds now.
  [[nodiscard]] virtual std::int64_t cached_tokens(ReplicaId replica) const = 0;
};

// Sends an arriving request to a replica, at once and for good.
class Router {
 public:
  virtual ~Router() = default;
  virtual ReplicaId route(const RequestRecord& arrival, const FleetView& fleet) = 0;
  // False: the choice does not look at the fleet's load, so hosts need not bring every replica up to this instant.
  [[nodiscard]] virtual bool reads_load() const { return true; }
  // Draws by the seed, so that runs with different seeds differ.
  [[nodiscard]] virtual bool is_random() const { return false; }
  virtual void set_seed(std::uint64_t /*seed*/) {}
};

using RouterRegistry = Registry<Router>;

}  // namespace kvlab
