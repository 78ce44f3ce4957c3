#pragma once

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "policies/order/order.h"

namespace kvlab {

// Preempted requests go to the end that the scheduler names.
class Fcfs final : public Order {
 public:
  Fcfs() = default;
  explicit Fcfs(Params& /*p*/) {}

  [[nodiscard]] std::uint32_t size() const override { return static_cast<std::uint32_t>(queue_.size()); }
  [[nodiscard]] RequestId at(std::uint32_t position) const override { return queue_[position]; }
  void insert(RequestId r, Entry entry) override {
    if (entry == Entry::kPreemptedToFront)
      queue_.push_front(r);
    else
      queue_.push_back(r);
  }
  void erase(RequestId r) override {
    if (!queue_.empty() && queue_.front() == r) {
      queue_.pop_front();
      return;
    }
    const auto at = std::find(queue_.begin(), queue_.end(), r);
    if (at == queue_.end()) throw InternalError("request is not waiting");
    queue_.erase(at);
  }
  [[nodiscard]] bool keeps_returning() const override { return true; }

  [[nodiscard]] RequestId victim(RequestId usual) const override { return usual; }
  [[nodiscard]] Horizon stable_for() const override { return Horizon::whatever_is_cached(); }

 private:
  std::deque<RequestId> queue_;
};

}  // namespace kvlab
