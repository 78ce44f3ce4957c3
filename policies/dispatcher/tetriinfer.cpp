#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/random.h"
#include "policies/dispatcher/room.h"

namespace kvlab {

namespace {

// Sections 3.3 to 3.5. Two decode instances with room are drawn; the smaller ratio of long to short predicted decodes wins.
class TetriInfer final : public Dispatcher {
 public:
  explicit TetriInfer(Params& p)
      : admission_(p.choice<Admission>("admission",
                                       {{"greedy", Admission::kGreedy},
                                        {"reserve_static", Admission::kReserveStatic},
                                        {"reserve_dynamic", Admission::kReserveDynamic}},
                                       Admission::kReserveDynamic,
                                       "a decode instance takes a request that fits: its KV now; its predicted full length now; now and "
                                       "when the first running request is predicted to end")),
        heavy_tokens_(p.optional<std::int32_t>("heavy_tokens", 128, 1, 1 << 24, "a decode of more predicted output tokens is heavy")),
        flips_(p.flag("flip", true, "an idle instance takes the other stage, where requests wait; one instance of each stage remains")),
        flip_idle_(p.seconds("flip_idle_s", 60, 0, 1e6, "time without a request after which an instance may flip")),
        period_(p.milliseconds("flip_period_ms", 1000, 1, 1e9, "time between two looks for idle instances")) {}

  [[nodiscard]] bool is_random() const override { return true; }
  void set_seed(std::uint64_t seed) override { seed_ = seed; }
  [[nodiscard]] bool changes_roles() const override { return flips_; }
  [[nodiscard]] Span period() const override { return flips_ ? period_ : Span{0}; }

  Placement place(const Ask& ask, const FleetView& fleet) override {
    instances_.resize(fleet.num_replicas());
    const Placement placement = ask.stage == Stage::kPrefill ? place_prefill(ask, fleet) : place_decode(ask, fleet);
    if (placement.kind == Placement::Kind::kSend) instances_[index(placement.replica)].idle_since = kNever;
    return placement;
  }

  void on_timer(const FleetView& fleet, FleetControl& control) override {
    instances_.resize(fleet.num_replicas());
    for (std::uint32_t i = 0; i < fleet.num_replicas(); ++i) {
      Time& since = instances_[i].idle_since;
      since = is_idle(fleet, ReplicaId{i}) ? std::min(since, fleet.now()) : kNever;
    }
    if (flipping_ && !(fleet.roles(flipping_->first) == flipping_->second)) return;  // one at a time
    flipping_.reset();
    for (const Stage from : {Stage::kPrefill, Stage::kDecode}) {
      const ReplicaId instance = instance_to_flip(fleet, from);
      if (instance == kNoReplica) continue;
      const Roles roles = from == Stage::kPrefill ? Roles{false, true} : Roles{true, false};
      flipping_ = {instance, roles};
      return control.change_roles(instance, roles);
    }
  }

  void on_leave(const RequestRecord& request) override {
    const auto found = requests_.find(request.number);
    if (found == requests_.end()) return;
    set_held(found->second, false);
    if (found->second.decode != kNoReplica) --count_of(found->second);
    requests_.erase(found);
  }

 private:
  enum class Admission : std::uint8_t { kGreedy, kReserveStatic, kReserveDynamic };
  struct Instance {
    std::int64_t heavy = 0, light = 0;  // decodes
    Time idle_since = kNever;
  };
  struct Known {
    std::int32_t output_tokens = 0;  // predicted
    ReplicaId decode = kNoReplica;
    bool is_held = false;
  };

  Placement place_prefill(const Ask& ask, const FleetView& fleet) {
    const ReplicaId chosen = fewest_prompt_tokens(ask.among, fleet);
    Known& known = requests_[ask.request.number];
    known.output_tokens = fleet.predicted_tokens();
    if (fleet.roles(chosen).decode) settle(known, chosen);
    return Placement::send(chosen);
  }

  Placement place_decode(const Ask& ask, const FleetView& fleet) {
    Known& known = requests_[ask.request.number];
    known.output_tokens = fleet.predicted_tokens();
    list_candidates(ask, fleet, known.output_tokens, true);
    if (candidates_.empty()) list_candidates(ask, fleet, known.output_tokens, false);
    set_held(known, candidates_.empty());
    if (candidates_.empty()) return Placement::hold();
    const ReplicaId chosen = of_two(fleet);
    settle(known, chosen);
    return Placement::send(chosen);
  }

  void set_held(Known& known, bool is_held) {
    num_held_ += static_cast<int>(is_held) - static_cast<int>(known.is_held);
    known.is_held = is_held;
  }
  void settle(Known& known, ReplicaId decode) {
    known.decode = decode;
    ++count_of(known);
  }
  std::int64_t& count_of(const Known& known) {
    Instance& its = instances_[index(known.decode)];
    return known.output_tokens > heavy_tokens_ ? its.heavy : its.light;
  }

  // full_length: with room for the predicted full length.
  void list_candidates(const Ask& ask, const FleetView& fleet, std::int32_t output_tokens, bool full_length) {
    candidates_.clear();
    const std::int32_t tokens = ask.request.prompt_tokens + output_tokens;
    for (const ReplicaId replica : ask.among) {
      const bool fits = !full_length || fleet.blocks_for(replica, tokens) <= room(fleet, replica);
      if (is_idle(fleet, replica) || (fits && admits(ask, fleet, replica, tokens))) candidates_.push_back(replica);
    }
  }

  [[nodiscard]] bool admits(const Ask& ask, const FleetView& fleet, ReplicaId replica, std::int32_t full_length) const {
    const std::int32_t known_tokens = ask.request.prompt_tokens + ask.request.output_tokens;
    const std::int64_t left = room(fleet, replica);
    if (admission_ == Admission::kReserveStatic) return fleet.blocks_for(replica, full_length) <= left;
    if (fleet.blocks_for(replica, known_tokens) > left) return false;
    return admission_ == Admission::kGreedy || left >= growth_until_first_end(fleet, replica, known_tokens);
  }

  // Net blocks taken until the first running request is predicted to end, the new one running.
  [[nodiscard]] std::int64_t growth_until_first_end(const FleetView& fleet, ReplicaId replica, std::int32_t known_tokens) const {
    constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();
    std::int32_t steps = kNone, held_by_first = 0;
    each_running(fleet, replica, [&](const Request& r) {
      const std::int32_t left = steps_left(r);
      if (left >= steps) return;
      steps = left;
      held_by_first = r.held_tokens();
    });
    if (steps == kNone) return fleet.blocks_for(replica, known_tokens);
    std::int64_t growth = fleet.blocks_for(replica, known_tokens + steps) - fleet.blocks_for(replica, held_by_first + steps);
    each_running(fleet, replica, [&](const Request& r) {
      growth += fleet.blocks_for(replica, r.held_tokens() + steps) - fleet.blocks_for(replica, r.held_tokens());
    });
    return growth;
  }

  // At least 1.
  [[nodiscard]] std::int32_t steps_left(const Request& r) const {
    const auto found = requests_.find(r.number);
    return found == requests_.end() ? 1 : std::max(1, found->second.output_tokens - r.output_tokens);
  }

  template <class Visit>
  static void each_running(const FleetView& fleet, ReplicaId replica, Visit&& visit) {
    for (std::uint32_t rank = 0; rank < fleet.num_ranks(replica); ++rank) {
      const ReplicaView& view = fleet.view(replica, rank);
      for (const RequestId r : view.running()) visit(view.info(r));
    }
  }

  [[nodiscard]] ReplicaId of_two(const FleetView& fleet) const {
    const std::size_t n = candidates_.size();
    if (n == 1) return candidates_[0];
    constexpr std::uint64_t kFirst = 2;  // 0 and 1: prefill stage
    const std::uint64_t first = Draw{seed_, Purpose::kRouter, fleet.num_asked(), kFirst}.below(n);
    std::uint64_t second = Draw{seed_, Purpose::kRouter, fleet.num_asked(), kFirst + 1}.below(n - 1);
    if (second >= first) ++second;
    return is_lighter(candidates_[second], candidates_[first]) ? candidates_[second] : candidates_[first];
  }

  // Ratio of heavy to light decodes; ties: fewer decodes.
  [[nodiscard]] bool is_lighter(ReplicaId a, ReplicaId b) const {
    const Instance &one = instances_[index(a)], &other = instances_[index(b)];
    const std::int64_t left = one.heavy * other.light, right = other.heavy * one.light;
    return left != right ? left < right : one.heavy + one.light < other.heavy + other.light;
  }

  [[nodiscard]] ReplicaId instance_to_flip(const FleetView& fleet, Stage from) const {
    ReplicaId idle = kNoReplica;
    int remaining = 0;
    bool others_wait = from == Stage::kPrefill && num_held_ > 0;
    for (std::uint32_t i = 0; i < fleet.num_replicas(); ++i) {
      const Roles roles = fleet.roles(ReplicaId{i});
      if (!roles.takes(from)) {
        others_wait = others_wait || fleet.load(ReplicaId{i}).waiting > 0;
        continue;
      }
      ++remaining;
      const bool has_one_stage = roles.prefill != roles.decode;
      const Time since = instances_[i].idle_since;
      if (idle == kNoReplica && has_one_stage && since != kNever && fleet.now() - since >= flip_idle_) idle = ReplicaId{i};
    }
    return others_wait && remaining > 1 ? idle : kNoReplica;
  }

  Admission admission_;
  std::int32_t heavy_tokens_;
  bool flips_;
  Span flip_idle_, period_;
  std::uint64_t seed_ = 0;
  std::vector<Instance> instances_;                    // by replica
  std::unordered_map<std::uint64_t, Known> requests_;  // by number, until they leave
  int num_held_ = 0;
  std::vector<ReplicaId> candidates_;
  std::optional<std::pair<ReplicaId, Roles>> flipping_;
};

KVLAB_REGISTER(Dispatcher, TetriInfer, "tetriinfer", "decode instances chosen by predicted output length; idle ones change their role",
               "TetriInfer, Hu et al. 2024, arXiv:2401.11181");

}  // namespace

}  // namespace kvlab
