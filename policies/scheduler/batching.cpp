#include "policies/scheduler/batching.h"

#include <algorithm>

namespace kvlab {

void StepBuilder::drop(RequestId r) {
  const auto planned = std::find_if(plan.entries.begin(), plan.entries.end(), [&](const StepEntry& e) { return e.request == r; });
  if (planned == plan.entries.end()) return;
  tokens -= planned->tokens;
  plan.entries.erase(planned);
}

RequestId StepBuilder::preempt_one() {
  const RequestId victim = view.victim(view.running().back());
  view.preempt(victim, Preemption::kRecompute);  // makes entries of plan_decodes()
  drop(victim);
  ++num_preempted;
  return victim;
}

Readiness ready_to_admit(ReplicaView& view, RequestId r, bool joins) {
  const Request& info = view.info(r);
  if (info.is_parked || info.in_flight_steps > 0) return Readiness::kLater;
  const bool has_blocks = info.computed_tokens > 0 && !info.is_swapped;
  if (!has_blocks && view.holds(r)) return Readiness::kNoRoom;
  if (has_blocks) return Readiness::kReady;
  if (!view.try_swap_in(r, info.known_tokens() - info.computed_tokens, joins)) return Readiness::kNoRoom;
  return info.is_parked ? Readiness::kLater : Readiness::kReady;
}

Admission admit_reserved(StepBuilder& step, RequestId r, std::int32_t reserved) {
  if (!step.view.try_reserve(r, reserved)) return Admission::kStop;
  step.view.admit(r);
  step.add(r, step.view.info(r).prompt_tokens);
  return Admission::kLeft;
}

}  // namespace kvlab
