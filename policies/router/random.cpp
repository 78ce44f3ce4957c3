#include "base/random.h"

#include "policies/router/router.h"

namespace kvlab {

namespace {

// A replica drawn uniformly for each request, or once and for all for each session. A draw is a function of its key, so
// sessions need no table.
class Random final : public Router {
 public:
  explicit Random(Params& p) : sticky_(p.flag("sticky_sessions", false, "whether requests of one session go to one replica")) {}

  [[nodiscard]] bool is_random() const override { return true; }
  void set_seed(std::uint64_t seed) override { seed_ = seed; }
  [[nodiscard]] bool reads_load() const override { return false; }

  ReplicaId route(const RequestRecord& arrival, const FleetView& fleet) override {
    const bool by_session = sticky_ && arrival.session >= 0;
    Draw draw{seed_, Purpose::kRouter};
    draw.request = by_session ? static_cast<std::uint64_t>(arrival.session) : fleet.num_arrived();
    draw.step = by_session ? 1 : 0;  // session 7 and arrival 7 draw apart
    return ReplicaId{static_cast<std::uint32_t>(draw.below(fleet.num_replicas()))};
  }

 private:
  bool sticky_;
  std::uint64_t seed_ = 0;
};

KVLAB_REGISTER(Router, Random, "random", "uniformly random replica, optionally one per session", "textbook");

}  // namespace

}  // namespace kvlab
