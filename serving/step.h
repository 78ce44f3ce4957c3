#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/picoseconds.h"
#include "policies/kv/footprint.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

// Just after a plan.
struct PlanUsage {
  std::int64_t waiting = 0;  // requests
  std::int64_t used_blocks = 0, wasted_tokens = 0, external_fragmentation_ppm = 0;
};

// Planned; output not processed.
struct InFlightStep : StepPlan {
  PolicyWork policy;
  PlanUsage usage;
  std::int64_t ended_tokens = 0;  // of entries that end in it
  std::int32_t images = 0;        // encoded before its prompts
  std::uint64_t number = 0;
  bool is_timed = false;              // start and end are set
  bool is_counted = false;            // in the totals
  bool is_uniform = false;            // one token per running request, no policy event
  std::uint64_t running_version = 0;  // of the planned running list
  Picoseconds planned{}, start{}, end{};
  Picoseconds policy_time{};  // the KV policy's part of [start, end]; 0: unknown

  void clear() {
    StepPlan::clear();
    policy.clear();
    ended_tokens = 0;
    images = 0;
    is_uniform = false;
    policy_time = {};
  }
};

// A copy of KV between GPU and CPU memory or from another replica, in plan order.
struct SwapCopy {
  RequestId request{};
  std::int64_t blocks = 0;
  bool to_host = false;
  std::int64_t calls = 0;  // one range each
  bool is_import = false;
  bool is_stored = false;         // to or from the store; never encoded
  bool is_ahead = false;          // Preemption::kSwapAhead
  bool joins = false;             // a copy in that the planned step waits for
  std::vector<BlockId> beside{};  // a copy out of these free blocks that no step waits for; empty: default
};

// Steps of a rank in flight, oldest first, with room for the next.
class StepRing {
 public:
  explicit StepRing(int depth) : steps_(static_cast<std::size_t>(depth)), depth_(depth) {}
  [[nodiscard]] int depth() const { return depth_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool is_empty() const { return size_ == 0; }
  [[nodiscard]] bool is_full() const { return size_ == depth_; }
  // i < depth().
  InFlightStep& operator[](int i) { return steps_[static_cast<std::size_t>(within(first_ + i))]; }
  InFlightStep& oldest() { return (*this)[0]; }
  InFlightStep& latest() { return (*this)[size_ - 1]; }
  // The step to plan, then push(); the ring must not be full.
  InFlightStep& next() { return (*this)[size_]; }
  void push() { ++size_; }
  void pop() {
    first_ = within(first_ + 1);
    --size_;
  }

 private:
  [[nodiscard]] int within(int at) const { return at < depth_ ? at : at - depth_; }

  std::vector<InFlightStep> steps_;
  int depth_;
  int first_ = 0, size_ = 0;
};

}  // namespace kvlab
