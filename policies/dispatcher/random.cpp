#include "base/random.h"

#include "policies/dispatcher/dispatcher.h"

namespace kvlab {

namespace {

class Random final : public Dispatcher {
 public:
  explicit Random(Params& p) : sticky_(p.flag("sticky_sessions", false, "whether requests of one session go to one replica")) {}

  [[nodiscard]] bool is_random() const override { return true; }
  void set_seed(std::uint64_t seed) override { seed_ = seed; }
  [[nodiscard]] bool reads_load() const override { return false; }

  Placement place(const Ask& ask, const FleetView& fleet) override {
    const bool by_session = sticky_ && ask.request.session >= 0;
    Draw draw{seed_, Purpose::kRouter};
    draw.request = by_session ? static_cast<std::uint64_t>(ask.request.session) : fleet.num_asked();
    draw.step = by_session ? 1 : 0;  // separate draws
    if (ask.stage == Stage::kDecode) draw.step += 2;
    return Placement::send(ask.among[draw.below(ask.among.size())]);
  }

 private:
  bool sticky_;
  std::uint64_t seed_ = 0;
};

KVLAB_REGISTER(Dispatcher, Random, "random", "uniformly random replica, optionally one per session", "textbook");

}  // namespace

}  // namespace kvlab
