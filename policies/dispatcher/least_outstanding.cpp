#include "policies/dispatcher/room.h"

namespace kvlab {

namespace {

// Fewest requests waiting or running; ties: the first.
class LeastOutstanding final : public Dispatcher {
 public:
  explicit LeastOutstanding(Params&) {}
  Placement place(const Ask& ask, const FleetView& fleet) override {
    return Placement::send(least_of(ask.among, [&](ReplicaId replica) { return outstanding(fleet, replica); }));
  }
};

KVLAB_REGISTER(Dispatcher, LeastOutstanding, "least_outstanding", "fewest requests waiting or running",
               "textbook: join the shortest queue");

}  // namespace

}  // namespace kvlab
