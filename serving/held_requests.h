#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "serving/dispatch.h"

namespace kvlab {

// Requests that the dispatcher holds, first come, first served, by the replica with the step that asks again.
class HeldRequests {
 public:
  struct Held {
    Dispatch::Question question;
    std::uint32_t rank = 0;       // kDecode: has it as an export,
    RequestId slot = kNoRequest;  // in this slot
    static constexpr std::uint32_t kNoJob = UINT32_MAX;
    std::uint32_t job = kNoJob;  // kPrefill: its encoded images (Encoders)
  };
  explicit HeldRequests(std::uint32_t num_replicas) : lists_(num_replicas + 1) {}

  [[nodiscard]] bool is_empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  // kNoReplica: any replica of the stage.
  std::deque<Held>& of(ReplicaId replica) { return lists_[slot_of(replica)]; }
  void add(ReplicaId replica, const Held& held) {
    of(replica).push_back(held);
    ++size_;
  }
  Held take_first(ReplicaId replica) {
    const Held held = of(replica).front();
    of(replica).pop_front();
    --size_;
    return held;
  }
  void put_back(ReplicaId replica, const Held& held) {
    of(replica).push_front(held);
    ++size_;
  }
  [[nodiscard]] const std::vector<std::deque<Held>>& lists() const { return lists_; }

 private:
  [[nodiscard]] std::size_t slot_of(ReplicaId replica) const { return replica == kNoReplica ? lists_.size() - 1 : index(replica); }

  std::vector<std::deque<Held>> lists_;  // by replica; last: any
  std::size_t size_ = 0;
};

}  // namespace kvlab
