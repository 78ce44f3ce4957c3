#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/picoseconds.h"
#include "policies/request.h"

namespace kvlab {

struct SloTarget;

// Token gaps in a stretch of decode steps, equal for all running requests: `single`, then `terms` of first, first + step, ..., none
// negative.
struct StretchGaps {
  std::vector<Picoseconds> single;
  Picoseconds first{}, step{};
  std::int64_t terms = 0;

  // Gaps above `limit`. O(single).
  [[nodiscard]] std::int64_t longer_than(Picoseconds limit) const;
};

// Counts late gaps of requests with SloTarget::tbt, and keeps RequestRecord::gaps. Free of cost until such a request arrives.
class GapWatch {
 public:
  [[nodiscard]] bool is_on() const { return !watched_.empty(); }
  // r arrives in slot `id`, with its output_limit and its own `target`.
  void begin(RequestId id, Request& r, const SloTarget& target);
  void add(RequestId id, Request& r, Picoseconds gap) {
    if (index(id) < watched_.size() && gap > watched_[index(id)].limit) add_late(watched_[index(id)], r, 1);
  }
  // A stretch: r's own first gap, and the others.
  void add(RequestId id, Request& r, Picoseconds first, const StretchGaps& others);

 private:
  struct Watched {
    Picoseconds limit = Picoseconds::max();  // max(): none
    std::int64_t spare = 0;                  // further late gaps allowed
  };
  static void add_late(Watched& watched, Request& r, std::int64_t count);

  std::vector<Watched> watched_;  // by slot
};

}  // namespace kvlab
