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

// The KV policy's time that a request waits for. Steps of one request overlap only as prompt chunks in a pipeline; shared time counts for
// the earlier step.
class PolicyShares {
 public:
  // The part of step.policy_time after the request's step before. Call in order of outputs.
  Picoseconds take(RequestId id, const InFlightStep& step) {
    if (index(id) >= ends_.size()) ends_.resize(std::size_t{index(id)} + 1);
    const Picoseconds before = std::exchange(ends_[index(id)], step.end);
    if (before <= step.start) return step.policy_time;
    const Int128 own = (step.end - before).count(), whole = (step.end - step.start).count();
    return Picoseconds(static_cast<std::int64_t>(Int128{step.policy_time.count()} * own / whole));
  }

 private:
  std::vector<Picoseconds> ends_;  // by slot; a slot's next request starts later
};

}  // namespace kvlab
