#include "policies/dispatcher/pull_queue.h"

namespace kvlab {

namespace {

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
