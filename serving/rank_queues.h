#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "policies/order/order.h"

namespace kvlab {

// A request is in one queue: input from arrival, waiting from the next plan (or a preemption), running from admission. Requests that come
// back from CPU memory or another replica wait before all others, outside the order: they hold blocks, and a better request would wait for
// these blocks forever.
class RankQueues {
 public:
  // The order outlives the queues.
  explicit RankQueues(Order& order) : order_(&order) {}

  [[nodiscard]] const std::vector<RequestId>& input() const { return input_; }
  [[nodiscard]] std::uint32_t num_waiting() const { return static_cast<std::uint32_t>(returning_.size()) + order_->size(); }
  [[nodiscard]] RequestId waiting(std::uint32_t position) const {
    const auto first = static_cast<std::uint32_t>(returning_.size());
    return position < first ? returning_[position] : order_->at(position - first);
  }
  [[nodiscard]] const std::vector<RequestId>& running() const { return running_; }
  // Changes with the running list.
  [[nodiscard]] std::uint64_t running_version() const { return running_version_; }
  [[nodiscard]] std::int64_t num_queued() const { return std::int64_t{num_waiting()} + static_cast<std::int64_t>(input_.size()); }

  void add_input(RequestId r) { input_.push_back(r); }
  void input_to_waiting() {
    for (const RequestId r : input_) order_->insert(r, Order::Entry::kArrival);
    input_.clear();
  }
  void waiting_to_running(RequestId r) {
    remove_waiting(r);
    running_.push_back(r);
    ++running_version_;
  }
  void running_to_waiting(RequestId r, bool at_front) {
    remove_running(r);
    order_->insert(r, at_front ? Order::Entry::kPreemptedToFront : Order::Entry::kPreemptedToBack);
  }
  void remove_waiting(RequestId r) {
    const auto at = returning_.empty() ? returning_.end() : std::find(returning_.begin(), returning_.end(), r);
    if (at == returning_.end())
      order_->erase(r);
    else
      returning_.erase(at);
  }
  // A waiting r begins to come back from CPU memory.
  void note_return(RequestId r) {
    if (!order_->keeps_returning()) note_import(r);
  }
  // A waiting r begins to come from another replica.
  void note_import(RequestId r) {
    order_->erase(r);
    returning_.push_back(r);
  }
  // A request with blocks waits without having run. The order was told that it left.
  void add_returning(RequestId r) {
    order_->insert(r, Order::Entry::kArrival);
    note_import(r);
  }
  void remove_running(RequestId r) {
    const auto at = std::find(running_.rbegin(), running_.rend(), r);
    if (at == running_.rend()) throw InternalError("request is not running");
    running_.erase(std::next(at).base());
    ++running_version_;
  }

 private:
  Order* order_;
  std::vector<RequestId> input_, running_, returning_;
  std::uint64_t running_version_ = 0;
};

}  // namespace kvlab
