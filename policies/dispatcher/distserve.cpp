#include "policies/dispatcher/pull_queue.h"

namespace kvlab {

namespace {

// Section 4.3; distserve/decoding_stage_scheduler.py.
class DistServe final : public Dispatcher {
 public:
  explicit DistServe(Params& p)
      : decode_(p.optional<double>("waiting_blocks_frac", 0.05, 0, 1,
                                   "a decode instance accepts while the requests in its queue need less than this share of its "
                                   "blocks; an idle one always does")) {}

  Placement place(const Ask& ask, const FleetView& fleet) override {
    if (ask.stage == Stage::kDecode) return decode_.place(ask, fleet);
    return Placement::send(least_of(ask.among, [&](ReplicaId replica) { return outstanding(fleet, replica); }));
  }

 private:
  PullQueue decode_;
};

KVLAB_REGISTER(Dispatcher, DistServe, "distserve", "prefill and decode apart; decode instances pull KV when they have room",
               "DistServe, Zhong et al. 2024, arXiv:2401.09670");

}  // namespace

}  // namespace kvlab
