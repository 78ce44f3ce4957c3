#include <deque>
#include <optional>
#include <vector>

#include "policies/dispatcher/room.h"

namespace kvlab {

namespace {

// DistServe (Zhong et al. 2024, section 4.3; distserve/decoding_stage_scheduler.py). A prompt goes to the prefill instance with the
// shortest queue, and then to the decode instance with the fewest requests, which pulls its KV when it can take it. Until then the KV holds
// memory of the prefill instance. Each decode instance accepts its requests first come, first served.
class DistServe final : public Dispatcher {
 public:
  explicit DistServe(Params& p)
      : waiting_frac_(p.optional<double>("waiting_blocks_frac", 0.05, 0, 1,
                                         "a decode instance accepts while the requests in its queue need less than this share of its "
                                         "blocks; an idle one always does")) {}

  Placement place(const Ask& ask, const FleetView& fleet) override {
    if (ask.stage == Stage::kDecode) return place_decode(ask, fleet);
    return Placement::send(least_of(ask.among, [&](ReplicaId replica) { return outstanding(fleet, replica); }));
  }

 private:
  Placement place_decode(const Ask& ask, const FleetView& fleet) {
    unaccepted_.resize(fleet.num_replicas());
    const std::optional<ReplicaId> waits_for = held_first(ask.request.number);
    const ReplicaId decode = waits_for ? *waits_for : least_loaded(ask, fleet);
    std::deque<std::uint64_t>& queue = unaccepted_[index(decode)];
    const bool is_next = waits_for || queue.empty();
    if (is_idle(fleet, decode) || (is_next && accepts(ask, fleet, decode))) {
      if (waits_for) queue.pop_front();
      return Placement::send(decode);
    }
    if (!waits_for) queue.push_back(ask.request.number);
    return Placement::hold(decode);
  }

  // The instance that the request waits for; held requests are asked for again in the order of its queue.
  [[nodiscard]] std::optional<ReplicaId> held_first(std::uint64_t number) const {
    for (std::uint32_t i = 0; i < unaccepted_.size(); ++i)
      if (!unaccepted_[i].empty() && unaccepted_[i].front() == number) return ReplicaId{i};
    return std::nullopt;
  }

  // Requests that it has not accepted yet count as its load.
  [[nodiscard]] ReplicaId least_loaded(const Ask& ask, const FleetView& fleet) const {
    return least_of(ask.among, [&](ReplicaId replica) {
      return outstanding(fleet, replica) + static_cast<std::int64_t>(unaccepted_[index(replica)].size());
    });
  }

  // In DistServe accepted requests take their blocks at once; here they take them when the scheduler begins the copy, so that those of the
  // queue are not free.
  [[nodiscard]] bool accepts(const Ask& ask, const FleetView& fleet, ReplicaId decode) const {
    const ReplicaLoad load = fleet.load(decode);
    const std::int64_t queued = fleet.queued_blocks(decode);
    if (static_cast<double>(queued) >= waiting_frac_ * static_cast<double>(load.num_blocks)) return false;
    const std::int64_t needed = fleet.blocks_for(decode, ask.request.prompt_tokens + ask.request.output_tokens);
    return load.used_blocks + queued + needed <= load.num_blocks;
  }

  double waiting_frac_;
  std::vector<std::deque<std::uint64_t>> unaccepted_;  // by decode instance: numbers of the requests that are held for it
};

KVLAB_REGISTER(Dispatcher, DistServe, "distserve", "prefill and decode apart; decode instances pull KV when they have room",
               "DistServe, Zhong et al. 2024, arXiv:2401.09670");

}  // namespace

}  // namespace kvlab
