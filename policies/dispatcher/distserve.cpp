#include <deque>
#include <optional>
#include <vector>

#include "policies/dispatcher/room.h"

namespace kvlab {

namespace {

// Instances of one stage pull requests, FIFO, when they have room (Zhong et al. 2024, section 4.3; distserve/decoding_stage_scheduler.py).
// Until accepted, KV or embeddings stay.
class PullQueue {
 public:
  // An instance accepts if idle, or while its queue needs less than `waiting_frac` of its blocks and has at most `most_waiting` requests
  // (0: no limit).
  explicit PullQueue(double waiting_frac, std::int64_t most_waiting = 0) : waiting_frac_(waiting_frac), most_waiting_(most_waiting) {}

  Placement place(const Ask& ask, const FleetView& fleet) {
    unaccepted_.resize(fleet.num_replicas());
    const std::optional<ReplicaId> waits_for = held_first(ask.request.number);
    const ReplicaId chosen = waits_for ? *waits_for : least_loaded(ask, fleet);
    std::deque<std::uint64_t>& queue = unaccepted_[index(chosen)];
    const bool is_next = waits_for || queue.empty();
    if (is_idle(fleet, chosen) || (is_next && accepts(fleet, chosen, ask.request))) {
      if (waits_for) queue.pop_front();
      return Placement::send(chosen);
    }
    if (!waits_for) queue.push_back(ask.request.number);
    return Placement::hold(chosen);
  }

 private:
  [[nodiscard]] std::optional<ReplicaId> held_first(std::uint64_t number) const {
    for (std::uint32_t i = 0; i < unaccepted_.size(); ++i)
      if (!unaccepted_[i].empty() && unaccepted_[i].front() == number) return ReplicaId{i};
    return std::nullopt;
  }

  // Counts unaccepted requests.
  [[nodiscard]] ReplicaId least_loaded(const Ask& ask, const FleetView& fleet) const {
    return least_of(ask.among, [&](ReplicaId replica) {
      return outstanding(fleet, replica) + static_cast<std::int64_t>(unaccepted_[index(replica)].size());
    });
  }

  // DistServe allocates on acceptance; here blocks are taken when scheduled, so queued ones are subtracted.
  [[nodiscard]] bool accepts(const FleetView& fleet, ReplicaId replica, const RequestRecord& request) const {
    const ReplicaLoad load = fleet.load(replica);
    const std::int64_t queued = fleet.queued_blocks(replica);
    if (static_cast<double>(queued) >= waiting_frac_ * static_cast<double>(load.num_blocks)) return false;
    if (most_waiting_ > 0 && load.waiting > most_waiting_) return false;
    return load.used_blocks + queued + fleet.blocks_for(replica, request.prompt_tokens + request.output_tokens) <= load.num_blocks;
  }

  double waiting_frac_;
  std::int64_t most_waiting_;
  std::vector<std::deque<std::uint64_t>> unaccepted_;  // request numbers
};

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

// Singh et al. 2025; epdserve/scheduler_context.py, scheduler_decoding.py. Not modelled: the search for pool sizes, and role changes.
class Epd final : public Dispatcher {
 public:
  explicit Epd(Params& p)
      : is_parallel_(
            p.flag("parallel_encode", true,
                   "the images of a request go to several encode instances; false: all of them to the one with the fewest images")),
        waiting_frac_(p.optional<double>("waiting_blocks_frac", 0.05, 0, 1,
                                         "an instance accepts while the requests in its queue need less than this share of its blocks; an "
                                         "idle one always does")),
        prefill_(waiting_frac_),
        decode_(waiting_frac_, p.optional<std::int64_t>("decode_waiting_requests", 512, 0, 1 << 20,
                                                        "and, of decode instances, while its queue has at most so many: two batches of "
                                                        "the scheduler; 0: any number")) {}

  Placement place(const Ask& ask, const FleetView& fleet) override {
    PullQueue& stage = ask.stage == Stage::kDecode ? decode_ : prefill_;
    return stage.place(ask, fleet);
  }

  void place_images(const ImageAsk& ask, std::vector<std::int32_t>& share) override {
    if (!is_parallel_) return Dispatcher::place_images(ask, share);
    for (std::int32_t image = 0; image < ask.images; ++image) {
      std::size_t best = 0;
      for (std::size_t i = 1; i < share.size(); ++i)
        if (ask.waiting[i] + share[i] < ask.waiting[best] + share[best]) best = i;
      ++share[best];
    }
  }

 private:
  bool is_parallel_;
  double waiting_frac_;
  PullQueue prefill_, decode_;
};

KVLAB_REGISTER(Dispatcher, Epd, "epd", "images of a request are encoded on several replicas; embeddings and KV are pulled",
               "EPD, Singh et al. 2025, arXiv:2501.05460");

}  // namespace

}  // namespace kvlab
