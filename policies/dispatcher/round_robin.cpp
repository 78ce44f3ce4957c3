#include "policies/dispatcher/dispatcher.h"

namespace kvlab {

namespace {

class RoundRobin final : public Dispatcher {
 public:
  explicit RoundRobin(Params&) {}
  [[nodiscard]] bool reads_load() const override { return false; }
  Placement place(const Ask& ask, const FleetView& fleet) override {
    return Placement::send(ask.among[fleet.num_asked() % ask.among.size()]);
  }
};

KVLAB_REGISTER(Dispatcher, RoundRobin, "round_robin", "replicas in turn", "textbook");

}  // namespace

}  // namespace kvlab
