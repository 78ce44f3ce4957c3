#include "policies/router/router.h"

namespace kvlab {

namespace {

// Replicas in turn, by number of arrival.
class RoundRobin final : public Router {
 public:
  explicit RoundRobin(Params&) {}
  [[nodiscard]] bool reads_load() const override { return false; }
  ReplicaId route(const RequestRecord& /*arrival*/, const FleetView& fleet) override {
    return ReplicaId{static_cast<std::uint32_t>(fleet.num_arrived() % fleet.num_replicas())};
  }
};

KVLAB_REGISTER(Router, RoundRobin, "round_robin", "replicas in turn", "textbook");

}  // namespace

}  // namespace kvlab
