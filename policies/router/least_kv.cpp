#include "policies/router/router.h"

namespace kvlab {

namespace {

// The replica whose KV memory is least in use, as a share of its blocks; of equals the first. Requests that only wait hold
// no memory and do not count.
class LeastKv final : public Router {
 public:
  explicit LeastKv(Params&) {}
  ReplicaId route(const RequestRecord&, const FleetView& fleet) override {
    std::uint32_t best = 0;
    ReplicaLoad least = fleet.load(ReplicaId{0});
    for (std::uint32_t i = 1; i < fleet.num_replicas(); ++i) {
      const ReplicaLoad mine = fleet.load(ReplicaId{i});
      if (mine.used_blocks * least.num_blocks >= least.used_blocks * mine.num_blocks) continue;
      best = i;
      least = mine;
    }
    return ReplicaId{best};
  }
};

KVLAB_REGISTER(Router, LeastKv, "least_kv", "smallest share of KV blocks in use", "textbook: least loaded, by memory");

}  // namespace

}  // namespace kvlab
