#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/ids.h"

namespace kvlab {

// The queues of a replica. A request is in one of them until it leaves: input since it arrived, waiting since the next plan began (and
// again after a preemption), running since it was admitted.
class RequestQueues {
 public:
  [[nodiscard]] const std::vector<RequestId>& input() const { return input_; }
  [[nodiscard]] const std::deque<RequestId>& waiting() const { return waiting_; }
  [[nodiscard]] const std::vector<RequestId>& running() const { return running_; }
  // Changes whenever the running list does.
  [[nodiscard]] std::uint64_t running_version() const { return running_version_; }
  // Requests that arrived and do not run.
  [[nodiscard]] std::int64_t num_queued() const { return static_cast<std::int64_t>(waiting_.size() + input_.size()); }

  void add_input(RequestId r) { input_.push_back(r); }
  void input_to_waiting() {
    waiting_.insert(waiting_.end(), input_.begin(), input_.end());
    input_.clear();
  }
  void waiting_to_running(RequestId r) {
    remove_waiting(r);
    running_.push_back(r);
    ++running_version_;
  }
  void running_to_waiting(RequestId r, bool at_front) {
    remove_running(r);
    if (at_front)
      waiting_.push_front(r);
    else
      waiting_.push_back(r);
  }
  void remove_waiting(RequestId r) {
    if (!waiting_.empty() && waiting_.front() == r) {
      waiting_.pop_front();
      return;
    }
    const auto at = std::find(waiting_.begin(), waiting_.end(), r);
    if (at == waiting_.end()) throw InternalError("request is not waiting");
    waiting_.erase(at);
  }
  void remove_running(RequestId r) {
    const auto at = std::find(running_.rbegin(), running_.rend(), r);
    if (at == running_.rend()) throw InternalError("request is not running");
    running_.erase(std::next(at).base());
    ++running_version_;
  }

 private:
  std::vector<RequestId> input_, running_;
  std::deque<RequestId> waiting_;
  std::uint64_t running_version_ = 0;
};

}  // namespace kvlab
