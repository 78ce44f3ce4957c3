#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/int128.h"
#include "base/picoseconds.h"
#include "serving/step.h"

namespace kvlab {

// The time of the KV policy's work that a request waits for in its steps. Steps of one request overlap only as chunks of its prompt in a
// pipeline. An instant that two of them share counts for the earlier one.
class PolicyShares {
 public:
  // The part of step.policy_time that counts for a request of the step: the share of the step after the end of the step before it that
  // counted for this request. Called in order of the outputs.
  Picoseconds take(RequestId id, const InFlightStep& step) {
    if (index(id) >= ends_.size()) ends_.resize(std::size_t{index(id)} + 1);
    const Picoseconds before = std::exchange(ends_[index(id)], step.end);
    if (before <= step.start) return step.policy_time;
    const Int128 own = (step.end - before).count(), whole = (step.end - step.start).count();
    return Picoseconds(static_cast<std::int64_t>(Int128{step.policy_time.count()} * own / whole));
  }

 private:
  std::vector<Picoseconds> ends_;  // by slot. The next request of a slot starts its first step after this.
};

}  // namespace kvlab
