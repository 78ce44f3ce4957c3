#pragma once

#include <cstdint>
#include <vector>

#include "policies/order/order.h"

namespace kvlab {

// Swapping before memory runs out, as FastServe does it (Wu et al. 2023, arXiv:2305.05920; the constants are those of its code). While
// fewer than max(swap_ahead_blocks, running requests) GPU blocks are free, the running requests that are last by the order are copied to
// CPU memory; steps go on meanwhile, and the blocks are free when the copies end. The first of the waiting queue that are in CPU memory
// come back before a row is free, as long as that number stays free. New prompts are held while less than `cpu_floor_frac` of the CPU
// memory is free.
//
// A request in CPU memory that overtakes nobody is held, too, until so many blocks stay free: it would be copied out again at once.
class SwapAhead {
 public:
  explicit SwapAhead(Params& p);
  [[nodiscard]] bool is_on() const { return blocks_ > 0; }

  // A preempted r begins to wait; a waiting r stops.
  void add(RequestId r) {
    if (is_on()) preempted_.push_back(r);
  }
  void remove(RequestId r);
  // Order::on_plan(), take_off(), holds().
  void bring_back(const Order& order, ReplicaView& view);
  Preemption take_off(const Order& order, ReplicaView& view, std::vector<RequestId>& off) const;
  [[nodiscard]] bool holds(const Order& order, ReplicaView& view, RequestId r) const;
  // r has nothing computed, and CPU memory is short.
  [[nodiscard]] bool holds_new(const ReplicaView& view, RequestId r) const {
    return cpu_is_short(view) && view.info(r).computed_tokens == 0;
  }

 private:
  [[nodiscard]] std::int64_t target(const ReplicaView& view) const;
  [[nodiscard]] bool cpu_is_short(const ReplicaView& view) const;
  [[nodiscard]] bool may_come_back(ReplicaView& view, RequestId r) const;

  std::int64_t blocks_;
  std::uint32_t first_;
  double cpu_floor_;
  std::vector<RequestId> preempted_;  // that wait, in no order
  std::vector<RequestId> due_;
};

}  // namespace kvlab
