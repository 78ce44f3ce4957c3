#pragma once

#include <cstdint>

#include "policies/scheduler/scheduler.h"

namespace kvlab {

// Whether a waiting request can be admitted now.
enum class Readiness : std::uint8_t {
  kReady,
  kLater,   // its copy or its own output is under way; it keeps its place in the queue
  kNoRoom,  // swapped out, and no memory to bring it back
};

// Starts bringing r back where it was swapped out, with room for m more tokens. Any preemption may be a swap, since a KV
// policy can ask for it (Footprint::on_preempt), so every scheduler that preempts asks here before it admits.
inline Readiness ready_to_admit(ReplicaView& view, RequestId r, std::int32_t m = 1) {
  const RequestInfo& info = view.info(r);
  if (info.is_parked || info.in_flight_steps > 0) return Readiness::kLater;
  if (!info.is_swapped) return Readiness::kReady;
  return view.try_swap_in(r, m) ? Readiness::kLater : Readiness::kNoRoom;
}

}  // namespace kvlab
