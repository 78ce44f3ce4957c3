#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "policies/scheduler/scheduler.h"

namespace kvlab {

struct StepBuilder {
  ReplicaView& view;
  StepPlan& plan;
  std::int32_t tokens = 0;
  std::int32_t num_preempted = 0;

  [[nodiscard]] std::int32_t num_requests() const { return static_cast<std::int32_t>(plan.num_rows()); }
  // As ReplicaView::plan_decodes().
  std::size_t plan_decodes(std::int32_t most = std::numeric_limits<std::int32_t>::max()) {
    const std::size_t done = view.plan_decodes(plan, most);
    tokens += plan.decodes.count;
    return done;
  }
  void add(RequestId r, std::int32_t m) {
    plan.add(r, m);
    tokens += m;
  }
  // The latest admitted or the order's choice; drops it from the plan.
  RequestId preempt_one();
  void drop(RequestId r);
};

// preempt_one() returns the request it preempted. Returns false if that was r.
template <class PreemptOne>
bool allocate_or_preempt(ReplicaView& view, RequestId r, std::int32_t m, PreemptOne&& preempt_one) {
  while (!view.try_allocate(r, m))
    if (preempt_one() == r) return false;
  return true;
}
inline bool allocate_or_preempt(StepBuilder& step, RequestId r, std::int32_t m) {
  return allocate_or_preempt(step.view, r, m, [&] { return step.preempt_one(); });
}

// For running requests in admission order from place `first`, until visit(r) is false. visit may preempt; it returns true only if r still
// runs.
template <class Visit>
void each_running(ReplicaView& view, Visit&& visit, std::size_t first = 0) {
  std::span<const RequestId> running = view.running();
  for (std::size_t i = first; i < running.size(); ++i) {
    const RequestId r = running[i];
    if (!visit(r)) return;
    running = view.running();
    i = std::min(i, running.size() - 1);
    while (running[i] != r) --i;  // earlier ones have left
  }
}

inline std::int32_t num_running(const ReplicaView& view) { return static_cast<std::int32_t>(view.running().size()); }

// 0 while a step of r is in flight.
inline std::int32_t tokens_at_rest(const ReplicaView& view, RequestId r) {
  return view.info(r).in_flight_steps > 0 ? 0 : view.needed_tokens(r);
}
// Includes requests recomputed after a preemption.
inline bool is_decode(const ReplicaView& view, RequestId r) { return view.info(r).output_tokens > 0 && tokens_at_rest(view, r) == 1; }

// For a waiting r: swapped-in tokens, else hits.
inline std::int32_t computed_or_cached(ReplicaView& view, RequestId r) {
  const std::int32_t computed = view.info(r).computed_tokens;
  return computed > 0 ? computed : view.lookup(r);
}

enum class Admission : std::uint8_t {
  kLeft,   // admitted or rejected
  kLater,  // its copy or output is under way
  kStop,   // no later request may overtake it
};

struct WaitingWalk {
  std::uint32_t num_passed = 0;
  enum class End : std::uint8_t { kQueueEnds, kFull, kStopped } end = End::kQueueEnds;

  // The next walk ends the same until memory, rows or budget come back.
  [[nodiscard]] bool is_settled() const { return num_passed == 0; }
};

// Until is_full() or kStop.
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
  kLater,   // copy or output under way
  kNoRoom,  // no memory to swap in, or held by the order
};

// Starts to swap in a swapped r, with room for all known tokens. Every scheduler that preempts must call this before it admits: orders and
// KV policies (Footprint::on_preempt) may swap. joins: this plan admits r if ready, so its step may wait for the copy.
Readiness ready_to_admit(ReplicaView& view, RequestId r, bool joins = true);

// admit() returns false if r does not fit.
template <class Admit>
Admission admit_if_ready(ReplicaView& view, RequestId r, Admit&& admit) {
  const Readiness readiness = ready_to_admit(view, r);
  if (readiness == Readiness::kLater) return Admission::kLater;
  return readiness == Readiness::kReady && admit() ? Admission::kLeft : Admission::kStop;
}

// Contiguous memory for `reserved` tokens.
Admission admit_reserved(StepBuilder& step, RequestId r, std::int32_t reserved);

// Share of blocks that admission leaves free, in whole blocks.
class Watermark {
 public:
  explicit Watermark(Params& p)
      : frac_(p.optional<double>("watermark_frac", 0.01, 0, 0.5, "share of the blocks that admission leaves free, in whole blocks")) {}

  // After `needed` blocks are taken.
  [[nodiscard]] bool is_kept(const ReplicaView& view, std::int64_t needed) const { return view.free_blocks() - needed >= blocks(view); }
  // With only r on the replica, all its known tokens prefilled.
  [[nodiscard]] bool is_kept_alone(const ReplicaView& view, RequestId r) const {
    return view.num_blocks() - view.peak_blocks(r) >= blocks(view);
  }
  [[nodiscard]] std::int64_t blocks(const ReplicaView& view) const {
    return static_cast<std::int64_t>(frac_ * static_cast<double>(view.num_blocks()));
  }

 private:
  double frac_;
};

}  // namespace kvlab
