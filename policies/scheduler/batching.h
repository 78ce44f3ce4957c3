#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "policies/scheduler/scheduler.h"

namespace kvlab {

// A step in the making: the plan, and the number of tokens in it.
struct StepBuilder {
  ReplicaView& view;
  StepPlan& plan;
  std::int32_t tokens = 0;
  std::int32_t num_preempted = 0;

  [[nodiscard]] std::int32_t num_requests() const { return static_cast<std::int32_t>(plan.entries.size()); }
  void add(RequestId r, std::int32_t m) {
    plan.add(r, m);
    tokens += m;
  }
  // Preempts the most recently admitted request, or the one that the order names; its tokens leave the plan.
  RequestId preempt_one();
  // r's tokens leave the plan.
  void drop(RequestId r);
};

// Room for m more tokens of r, if need be by preempting. preempt_one() preempts one request and returns it. False: that was r itself.
template <class PreemptOne>
bool allocate_or_preempt(ReplicaView& view, RequestId r, std::int32_t m, PreemptOne&& preempt_one) {
  while (!view.try_allocate(r, m))
    if (preempt_one() == r) return false;
  return true;
}
inline bool allocate_or_preempt(StepBuilder& step, RequestId r, std::int32_t m) {
  return allocate_or_preempt(step.view, r, m, [&] { return step.preempt_one(); });
}

// Calls visit(r) for running requests in order of admission until it returns false. It may preempt any; those that no longer run are left
// out. It returns true only if r still runs.
template <class Visit>
void each_running(ReplicaView& view, Visit&& visit) {
  for (std::size_t i = 0;; ++i) {
    std::span<const RequestId> running = view.running();
    if (i >= running.size()) return;
    const RequestId r = running[i];
    if (!visit(r)) return;
    running = view.running();
    i = std::min(i, running.size() - 1);
    while (running[i] != r) --i;  // others before it have gone
  }
}

inline std::int32_t num_running(const ReplicaView& view) { return static_cast<std::int32_t>(view.running().size()); }

// Tokens that a running r can compute in this step; 0 while a step of r is in flight.
inline std::int32_t tokens_at_rest(const ReplicaView& view, RequestId r) {
  return view.info(r).in_flight_steps > 0 ? 0 : view.needed_tokens(r);
}
// A request that is computed again after a preemption is a decode from its last known token on.
inline bool is_decode(const ReplicaView& view, RequestId r) { return view.info(r).output_tokens > 0 && tokens_at_rest(view, r) == 1; }

// Tokens of a waiting r that are computed already: those that came back from host memory, or else its hits.
inline std::int32_t computed_or_cached(ReplicaView& view, RequestId r) {
  const std::int32_t computed = view.info(r).computed_tokens;
  return computed > 0 ? computed : view.lookup(r);
}

// The result of an attempt to admit a waiting request.
enum class Admission : std::uint8_t {
  kLeft,   // admitted or rejected: the next request has its place now
  kLater,  // its copy or its own output is under way: it keeps its place, and the next request is tried
  kStop,   // it does not fit, and no later request may overtake it
};

// A walk over the waiting requests in order of the queue.
struct WaitingWalk {
  std::uint32_t num_passed = 0;  // requests that keep their place
  enum class End : std::uint8_t { kQueueEnds, kFull, kStopped } end = End::kQueueEnds;

  // No request waits for a copy or for its own output: the next walk has the same end until memory, rows or budget come back.
  [[nodiscard]] bool is_settled() const { return num_passed == 0; }
};

// Calls try_admit(r), which returns an Admission, for waiting requests until is_full() or kStop.
template <class IsFull, class TryAdmit>
WaitingWalk walk_waiting(ReplicaView& view, IsFull&& is_full, TryAdmit&& try_admit) {
  WaitingWalk walk;
  while (walk.num_passed < view.num_waiting()) {
    if (is_full()) {
      walk.end = WaitingWalk::End::kFull;
      return walk;
    }
    const Admission admission = try_admit(view.waiting(walk.num_passed));
    if (admission == Admission::kStop) {
      walk.end = WaitingWalk::End::kStopped;
      return walk;
    }
    if (admission == Admission::kLater) ++walk.num_passed;
  }
  return walk;
}

enum class Readiness : std::uint8_t {
  kReady,
  kLater,   // its copy or its own output is under way; it keeps its place in the queue
  kNoRoom,  // swapped out, and no memory to bring it back; or the order holds it
};

// Tells if a waiting r can be admitted now. A swapped r starts to come back, with room for all of its known tokens: requests that came
// back with a part of their prompts would wait for each other's blocks. A KV policy can ask for a swap (Footprint::on_preempt), and so can
// an order, so every scheduler that preempts calls this before it admits.
// joins: this plan admits r if it is ready, so that its step may wait for the copy.
Readiness ready_to_admit(ReplicaView& view, RequestId r, bool joins = true);

// Calls admit(), which returns false where r does not fit, if r is ready.
template <class Admit>
Admission admit_if_ready(ReplicaView& view, RequestId r, Admit&& admit) {
  const Readiness readiness = ready_to_admit(view, r);
  if (readiness == Readiness::kLater) return Admission::kLater;
  return readiness == Readiness::kReady && admit() ? Admission::kLeft : Admission::kStop;
}

// Admits a waiting r with its whole prompt and contiguous memory for `reserved` tokens.
Admission admit_reserved(StepBuilder& step, RequestId r, std::int32_t reserved);

// A share of the blocks that admission leaves free, in whole blocks.
class Watermark {
 public:
  explicit Watermark(Params& p)
      : frac_(p.optional<double>("watermark_frac", 0.01, 0, 0.5, "share of the blocks that admission leaves free, in whole blocks")) {}

  // After `needed` blocks are taken.
  [[nodiscard]] bool is_kept(const ReplicaView& view, std::int64_t needed) const { return view.free_blocks() - needed >= blocks(view); }
  // By r alone on the replica, with all its known tokens prefilled.
  [[nodiscard]] bool is_kept_alone(const ReplicaView& view, RequestId r) const {
    return view.num_blocks() - view.peak_blocks(r) >= blocks(view);
  }
  // Blocks that it keeps free.
  [[nodiscard]] std::int64_t blocks(const ReplicaView& view) const {
    return static_cast<std::int64_t>(frac_ * static_cast<double>(view.num_blocks()));
  }

 private:
  double frac_;
};

}  // namespace kvlab
