#include "base/random.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
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

}  // namespace

}  // namespace kvlab
