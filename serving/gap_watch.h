#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/picoseconds.h"
#include "policies/request.h"

namespace kvlab {

struct SloTarget;

// The gaps between the tokens of a stretch of decode steps, the same for all running requests: those of `single`, then `terms` more, which
// are first, first + step, ... None is negative.
struct StretchGaps {
  std::vector<Picoseconds> single;
  Picoseconds first{}, step{};
  std::int64_t terms = 0;

  // The number of them that are longer than `limit`. O(single).
  [[nodiscard]] std::int64_t longer_than(Picoseconds limit) const;
};

// Counts, for the requests of one replica that have a target of the gaps between their tokens (SloTarget::tbt), those that are too long,
// and keeps RequestRecord::gaps. It costs nothing until the first such request arrives.
class GapWatch {
 public:
  // If any request has been watched.
  [[nodiscard]] bool is_on() const { return !watched_.empty(); }
  // r arrives in slot `id`, with its output_limit; `target`: its own.
  void begin(RequestId id, Request& r, const SloTarget& target);
  // A gap of r ends.
  void add(RequestId id, Request& r, Picoseconds gap) {
    if (index(id) < watched_.size() && gap > watched_[index(id)].limit) add_late(watched_[index(id)], r, 1);
  }
  // The gaps of a stretch end: r's own first one, and the others.
  void add(RequestId id, Request& r, Picoseconds first, const StretchGaps& others);

 private:
  struct Watched {
    Picoseconds limit = Picoseconds::max();  // max(): none
    std::int64_t spare = 0;                  // late gaps that it may still have
  };
  static void add_late(Watched& watched, Request& r, std::int64_t count);

  std::vector<Watched> watched_;  // by slot
};

}  // namespace kvlab
