#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "policies/order/order.h"

namespace kvlab {

// The queues of a replica. A request is in one of them until it leaves: input since it arrived, waiting since the next plan began (and
// again after a preemption), running since it was admitted. The order holds those that wait.
class RequestQueues {
 public:
  // The order outlives the queues.
  explicit RequestQueues(Order& order) : order_(&order) {}

  [[nodiscard]] const std::vector<RequestId>& input() const { return input_; }
  [[nodiscard]] std::uint32_t num_waiting() const { return order_->size(); }
  [[nodiscard]] RequestId waiting(std::uint32_t position) const { return order_->at(position); }
  [[nodiscard]] const std::vector<RequestId>& running() const { return running_; }
  // Changes whenever the running list does.
  [[nodiscard]] std::uint64_t running_version() const { return running_version_; }
  // Requests that arrived and do not run.
  [[nodiscard]] std::int64_t num_queued() const { return std::int64_t{num_waiting()} + static_cast<std::int64_t>(input_.size()); }

  void add_input(RequestId r) { input_.push_back(r); }
  void input_to_waiting() {
    for (const RequestId r : input_) order_->insert(r, Order::Entry::kArrival);
    input_.clear();
  }
  void waiting_to_running(RequestId r) {
    order_->erase(r);
    running_.push_back(r);
    ++running_version_;
  }
  void running_to_waiting(RequestId r, bool at_front) {
    remove_running(r);
    order_->insert(r, at_front ? Order::Entry::kPreemptedToFront : Order::Entry::kPreemptedToBack);
  }
  void remove_waiting(RequestId r) { order_->erase(r); }
  void remove_running(RequestId r) {
    const auto at = std::find(running_.rbegin(), running_.rend(), r);
    if (at == running_.rend()) throw InternalError("request is not running");
    running_.erase(std::next(at).base());
    ++running_version_;
  }

 private:
  Order* order_;
  std::vector<RequestId> input_, running_;
  std::uint64_t running_version_ = 0;
};

}  // namespace kvlab
