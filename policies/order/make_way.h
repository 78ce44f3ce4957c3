#pragma once

#include <cstdint>
#include <vector>

#include "policies/scheduler/scheduler.h"

namespace kvlab {

struct Room {
  std::int32_t rows = 0;
  std::int64_t spare_blocks = 0;  // free blocks that admission leaves
};

inline std::int32_t tokens_to_admit(ReplicaView& view, RequestId r) {
  const Request& info = view.info(r);
  const bool has_own = info.is_swapped || info.computed_tokens > 0;  // else it may have hits
  return info.known_tokens() - (has_own ? info.computed_tokens : view.lookup(r));
}

template <class OnPreempt>
std::int32_t take_off(ReplicaView& view, OnPreempt&& on_preempt) {
  std::vector<RequestId> off;
  const Preemption mode = view.take_off(off);
  for (const RequestId r : off) {
    view.preempt(r, mode);
    on_preempt(r);
  }
  return static_cast<std::int32_t>(off.size());
}

// Preempts running requests, last by the order first, until each waiting request that overtakes one has a row and blocks. Runs at the start
// of plan() if lets_overtake().
template <class OnPreempt>
void make_way(ReplicaView& view, Room room, OnPreempt&& on_preempt) {
  const auto mode = view.overtaking();
  if (!mode) return;
  room.rows += take_off(view, on_preempt);
  std::int64_t taken = 0;
  for (std::uint32_t i = 0; i < view.num_waiting() && !view.running().empty();) {
    const RequestId r = view.waiting(i), worst = view.victim(view.running().back());
    const Request& info = view.info(r);
    if (info.is_leaving) {
      ++i;
      continue;
    }
    if (info.is_parked || (info.computed_tokens > 0 && !info.is_swapped && !info.is_paused)) {  // swapped in: has its blocks
      --room.rows;
      ++i;
      continue;
    }
    if (!view.overtakes(r, worst)) return;
    const bool cannot_enter = info.in_flight_steps > 0;
    const std::int64_t needed = cannot_enter ? 0 : view.blocks_needed(r, tokens_to_admit(view, r));
    const std::int64_t all = taken + needed + room.spare_blocks;
    if (cannot_enter || (room.rows > 0 && all <= view.free_blocks())) {
      room.rows -= cannot_enter ? 0 : 1;
      taken += needed;
      ++i;
      continue;
    }
    const bool lacks_blocks = all > view.free_blocks() + view.leaving_blocks();
    if (room.rows > 0 && !lacks_blocks) return;  // copies under way make room
    view.preempt(worst, *mode == Preemption::kKeep && lacks_blocks ? Preemption::kSwap : *mode);
    ++room.rows;
    on_preempt(worst);
  }
}
inline void make_way(ReplicaView& view, Room room) {
  make_way(view, room, [](RequestId) {});
}

}  // namespace kvlab
