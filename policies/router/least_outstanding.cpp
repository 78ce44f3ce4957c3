#include "policies/router/outstanding.h"

namespace kvlab {

namespace {

// The replica with the fewest requests waiting or running; of equals the first.
class LeastOutstanding final : public Router {
 public:
  explicit LeastOutstanding(Params&) {}
  ReplicaId route(const RequestRecord&, const FleetView& fleet) override {
    std::uint32_t best = 0;
    std::int64_t least = outstanding(fleet, 0);
    for (std::uint32_t i = 1; i < fleet.num_replicas(); ++i) {
      const std::int64_t mine = outstanding(fleet, i);
      if (mine >= least) continue;
      best = i;
      least = mine;
    }
    return ReplicaId{best};
  }
};

KVLAB_REGISTER(Router, LeastOutstanding, "least_outstanding", "fewest requests waiting or running", "textbook: join the shortest queue");

}  // namespace

}  // namespace kvlab
