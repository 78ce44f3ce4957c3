#include "base/random.h"

#include "policies/dispatcher/dispatcher.h"
#include "policies/dispatcher/room.h"

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

// Ties: the first drawn.
class PowerOfTwo final : public Dispatcher {
 public:
  explicit PowerOfTwo(Params&) {}

  [[nodiscard]] bool is_random() const override { return true; }
  void set_seed(std::uint64_t seed) override { seed_ = seed; }

  Placement place(const Ask& ask, const FleetView& fleet) override {
    const std::size_t n = ask.among.size();
    if (n == 1) return Placement::send(ask.among[0]);
    const std::uint64_t first_draw = ask.stage == Stage::kPrefill ? 0 : 2;
    const std::uint64_t first = Draw{seed_, Purpose::kRouter, fleet.num_asked(), first_draw}.below(n);
    std::uint64_t second = Draw{seed_, Purpose::kRouter, fleet.num_asked(), first_draw + 1}.below(n - 1);
    if (second >= first) ++second;
    const bool takes_second = outstanding(fleet, ask.among[second]) < outstanding(fleet, ask.among[first]);
    return Placement::send(ask.among[takes_second ? second : first]);
  }

 private:
  std::uint64_t seed_ = 0;
};

KVLAB_REGISTER(Dispatcher, PowerOfTwo, "power_of_two", "the less loaded of two random replicas",
               "Mitzenmacher 2001, The Power of Two Choices in Randomized Load Balancing");

}  // namespace

}  // namespace kvlab
