#include "policies/dispatcher/room.h"

namespace kvlab {

namespace {

struct UsedShare {
  std::int64_t used = 0, all = 0;
  bool operator<(const UsedShare& other) const { return used * other.all < other.used * all; }
};

// Ties: the first. Waiting requests hold no memory.
class LeastKv final : public Dispatcher {
 public:
  explicit LeastKv(Params&) {}
  Placement place(const Ask& ask, const FleetView& fleet) override {
    return Placement::send(least_of(ask.among, [&](ReplicaId replica) {
      const ReplicaLoad load = fleet.load(replica);
      return UsedShare{load.used_blocks, load.num_blocks};
    }));
  }
};

KVLAB_REGISTER(Dispatcher, LeastKv, "least_kv", "smallest share of KV blocks in use", "textbook: least loaded, by memory");

}  // namespace

}  // namespace kvlab
