#include "base/random.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "policies/order/keyed_order.h"
#include "policies/order/order.h"

namespace kvlab {

namespace {

// SGLang's `random` (python/sglang/srt/managers/schedule_policy.py, v0.5.9). Only places that a plan looks at are drawn, keyed by its time.
class RandomOrder final : public Order {
 public:
  explicit RandomOrder(Params& p) : seed_(p.optional<std::uint64_t>("seed", 1, 0, std::uint64_t{1} << 62, "of the draws")) {}

  [[nodiscard]] std::uint32_t size() const override { return static_cast<std::uint32_t>(queue_.size()); }
  [[nodiscard]] RequestId at(std::uint32_t position) const override {
    if (position >= queue_.size()) throw InternalError("fewer requests wait");
    while (drawn_.size() <= position) {
      const Draw draw{seed_, Purpose::kPolicy, plan_, num_draws_++, 0};
      const RequestId r = queue_[draw.below(queue_.size())];
      if (slots_[index(r)].drawn_in == num_plans_) continue;
      slots_[index(r)].drawn_in = num_plans_;
      drawn_.push_back(r);
    }
    return drawn_[position];
  }
  void insert(RequestId r, Entry /*entry*/) override {
    slot(slots_, r) = {static_cast<std::uint32_t>(queue_.size()), 0};
    queue_.push_back(r);
  }
  // O(places drawn in this plan).
  void erase(RequestId r) override {
    if (!is_waiting(r)) throw InternalError("request is not waiting");
    Slot& own = slots_[index(r)];
    if (own.drawn_in == num_plans_) drawn_.erase(std::find(drawn_.begin(), drawn_.end(), r));
    slots_[index(queue_.back())].place = own.place;
    queue_[own.place] = queue_.back();
    queue_.pop_back();
    own = {};
  }
  void on_plan() override {
    drawn_.clear();
    ++num_plans_;
    plan_ = static_cast<std::uint64_t>(ns(view().now()));
    num_draws_ = 0;
  }

  [[nodiscard]] RequestId victim(RequestId usual) const override { return usual; }
  // Another head may fit.
  [[nodiscard]] Horizon stable_for() const override { return queue_.empty() ? Horizon::whatever_is_cached() : Horizon::none(); }

 private:
  struct Slot {
    std::uint32_t place = 0;
    std::uint64_t drawn_in = 0;
  };
  [[nodiscard]] bool is_waiting(RequestId r) const {
    return index(r) < slots_.size() && slots_[index(r)].place < queue_.size() && queue_[slots_[index(r)].place] == r;
  }

  std::uint64_t seed_;
  std::uint64_t plan_ = 0, num_plans_ = 1;  // plans so far, from 1
  std::vector<RequestId> queue_;
  mutable std::vector<Slot> slots_;       // by slot
  mutable std::vector<RequestId> drawn_;  // first places of this plan
  mutable std::uint64_t num_draws_ = 0;
};

KVLAB_REGISTER(Order, RandomOrder, "random", "a random order, drawn anew for every plan",
               "SGLang 'random', Zheng et al. 2023, arXiv:2312.07104");

// Redrawn every 1 / frequency steps (Shen et al. 2024, arXiv:2411.18424). `markov` is our definition.
class FastSwitchPriority final : public KeyedOrder {
 public:
  explicit FastSwitchPriority(Params& p)
      : period_(std::lround(1 / p.optional<double>("frequency", 0.04, 1e-6, 1, "updates of priorities per step"))),
        is_markov_(p.choice("pattern", {{"random", false}, {"markov", true}}, false, "how priorities are drawn at an update")),
        stay_frac_(p.optional<double>("stay_frac", 0.8, 0, 1, "the chance that a running request keeps its priority, with 'markov'")),
        seed_(p.optional<std::uint64_t>("seed", 1, 0, std::uint64_t{1} << 62, "of the draws")),
        mode_(p.choice("preemption", {{"recompute", Preemption::kRecompute}, {"swap", Preemption::kSwap}}, Preemption::kSwap,
                       "what becomes of the KV of a request that is overtaken")) {
    if (!is_markov_ && p.has("stay_frac")) p.fail_at("stay_frac", "'stay_frac' means nothing without 'pattern: markov'");
  }

  void insert(RequestId r, Entry entry) override {
    if (entry == Entry::kArrival) {
      slot(states_, r) = {drawn(r), live_.size()};
      live_.push_back(r);
    }
    KeyedOrder::insert(r, entry);
  }
  void on_leave(RequestId r) override {
    const std::size_t place = states_[index(r)].place;
    states_[index(live_.back())].place = place;
    live_[place] = live_.back();
    live_.pop_back();
  }

  [[nodiscard]] std::optional<Preemption> overtaking() const override { return mode_; }
  [[nodiscard]] bool overtakes(RequestId waiting, RequestId running) const override { return rank(waiting) < rank(running); }
  [[nodiscard]] bool watches_steps() const override { return true; }

  // O(live requests) per update.
  void on_step_end(std::span<const StepEntry> /*entries*/, Span /*duration*/) override {
    if (++steps_ % period_ != 0) return;
    ++updates_;
    for (const RequestId r : live_) {
      if (keeps(r)) continue;
      states_[index(r)].rank = drawn(r);
      renew(r);
    }
  }

 private:
  struct State {
    std::int64_t rank = 0;
    std::size_t place = 0;
  };

  [[nodiscard]] std::int64_t rank(RequestId r) const override { return states_[index(r)].rank; }
  [[nodiscard]] Draw draw(RequestId r, std::uint64_t layer) const { return {seed_, Purpose::kPolicy, info(r).number, updates_, layer}; }
  [[nodiscard]] std::int64_t drawn(RequestId r) const { return static_cast<std::int64_t>(draw(r, 0).bits() >> 1); }
  [[nodiscard]] bool keeps(RequestId r) const { return is_markov_ && info(r).is_running && draw(r, 1).uniform() < stay_frac_; }

  std::int64_t period_;
  bool is_markov_;
  double stay_frac_;
  std::uint64_t seed_;
  Preemption mode_;
  std::vector<State> states_;    // by slot
  std::vector<RequestId> live_;  // in no order
  std::int64_t steps_ = 0;
  std::uint64_t updates_ = 0;
};

KVLAB_REGISTER(Order, FastSwitchPriority, "fastswitch_priority", "priorities that are drawn anew every few steps; the better one runs",
               "Shen et al. 2024, arXiv:2411.18424 (FastSwitch)");

}  // namespace

}  // namespace kvlab
