#include "base/random.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "policies/order/order.h"

namespace kvlab {

namespace {

// SGLang's `random` (python/sglang/srt/managers/schedule_policy.py, v0.5.9): the queue is shuffled before every plan. Only the places that
// a plan looks at are drawn; draws are keyed by the time of the plan.
class Random final : public Order {
 public:
  explicit Random(Params& p) : seed_(p.optional<std::uint64_t>("seed", 1, 0, std::uint64_t{1} << 62, "of the draws")) {}

  [[nodiscard]] std::uint32_t size() const override { return static_cast<std::uint32_t>(queue_.size()); }
  [[nodiscard]] RequestId at(std::uint32_t position) const override {
    if (!is_shuffled_) {
      shuffled_ = queue_;
      drawn_ = 0;
      is_shuffled_ = true;
    }
    for (; drawn_ <= position; ++drawn_, ++num_draws_) {
      const Draw draw{seed_, Purpose::kPolicy, plan_, num_draws_, 0};
      std::swap(shuffled_[drawn_], shuffled_[drawn_ + draw.below(shuffled_.size() - drawn_)]);
    }
    return shuffled_[position];
  }
  void insert(RequestId r, Entry /*entry*/) override {
    queue_.push_back(r);
    if (is_shuffled_) shuffled_.push_back(r);
  }
  void erase(RequestId r) override {
    remove(queue_, r);
    if (!is_shuffled_) return;
    if (remove(shuffled_, r) < drawn_) --drawn_;
  }
  void on_plan() override {
    is_shuffled_ = false;
    plan_ = static_cast<std::uint64_t>(ns(view().now()));
    num_draws_ = 0;
  }

  [[nodiscard]] bool precedes(RequestId a, RequestId b) const override { return info(a).arrival < info(b).arrival; }
  [[nodiscard]] RequestId victim(RequestId usual) const override { return usual; }
  // Another head may fit where this one does not.
  [[nodiscard]] Horizon stable_for() const override { return queue_.empty() ? Horizon::whatever_is_cached() : Horizon::none(); }

 private:
  // Returns the place that it had.
  static std::size_t remove(std::vector<RequestId>& from, RequestId r) {
    const auto at = std::find(from.begin(), from.end(), r);
    if (at == from.end()) throw InternalError("request is not waiting");
    const auto place = static_cast<std::size_t>(at - from.begin());
    from.erase(at);
    return place;
  }

  std::uint64_t seed_;
  std::uint64_t plan_ = 0;                   // its time
  std::vector<RequestId> queue_;             // in order of their coming
  mutable std::vector<RequestId> shuffled_;  // of this plan, while is_shuffled_: the first drawn_ are in their places
  mutable std::size_t drawn_ = 0;
  mutable std::uint64_t num_draws_ = 0;  // in this plan
  mutable bool is_shuffled_ = false;
};

KVLAB_REGISTER(Order, Random, "random", "a random order, drawn anew for every plan",
               "SGLang 'random', Zheng et al. 2023, arXiv:2312.07104");

}  // namespace

}  // namespace kvlab
