// Preemption and swaps.
#include <algorithm>
#include <utility>

#include "serving/op_sums.h"
#include "serving/replica_state.h"

namespace kvlab {

void ReplicaState::preempt(RequestId id, Preemption mode, QueueEnd end) {
  decodes_.separate();
  Request& r = table_[id];
  if (!r.is_running) throw InternalError("preempting a request that does not run");
  plan_was_quiet_ = false;
  plan_preempted_ = true;
  counters_.preemptions += r.is_counted ? 1 : 0;
  ++r.preemptions;
  if (mode == Preemption::kKeep && !memory_.keeps_everything()) mode = Preemption::kSwap;
  r.is_paused = mode == Preemption::kKeep;
  if (!r.is_paused) vacate(id, mode);
  r.is_running = false;
  queues_.running_to_waiting(id, end == QueueEnd::kFront);
}

void ReplicaState::put_away(RequestId id, Preemption mode) {
  Request& r = table_[id];
  if (!r.is_paused || mode == Preemption::kKeep) throw InternalError("putting away a request that is not on the GPU and waits");
  plan_was_quiet_ = false;
  r.is_paused = false;
  vacate(id, mode);
}

void ReplicaState::vacate(RequestId id, Preemption mode) {
  Request& r = table_[id];
  note(RequestEvent::kPreempted, r, now_);
  mode = memory_.preemption_of(r, mode);
  SwapCopy copy;
  const bool swapped = mode != Preemption::kRecompute && memory_.try_swap_out(id, copy);
  r.is_leaving = r.is_parked = swapped && mode == Preemption::kSwapAhead && copy.blocks > 0 && can_leave_later(id);
  if (swapped) {
    counters_.swaps += r.is_counted ? 1 : 0;
    copy.is_ahead = r.is_leaving;
    if (!r.is_leaving && memory_.copies_beside_steps()) copy.beside.assign(r.blocks.end() - copy.blocks, r.blocks.end());
    encoded_blocks_ += copy.blocks;
    if (copy.blocks > 0) swap_copies_.push_back(std::move(copy));
    note(RequestEvent::kSwappedOut, r, now_);
  } else {
    if (mode != Preemption::kRecompute && r.is_counted) ++counters_.recompute_fallbacks;
    memory_.drop_host_copy(id);
    memory_.remember_blocks(r);
  }
  if (r.is_leaving)
    leaving_blocks_ += r.swapped_blocks;
  else
    memory_.release(r);
  if (!swapped) forget_computed(id);
}

// Blocks stay during the copy: no output in flight may end it or change its content.
bool ReplicaState::can_leave_later(RequestId id) const {
  return needed_tokens(id) > 0 && (memory_.keeps_everything() || table_[id].in_flight_steps == 0);
}

void ReplicaState::forget_computed(RequestId id) {
  Request& r = table_[id];
  r.most_computed = std::max(r.most_computed, r.computed_tokens);
  table_.set_computed(r, 0);
  r.kept_tokens = r.row_tokens = r.pattern = 0;
  images_.forget(id);
}

bool ReplicaState::try_swap_in(RequestId id, std::int32_t m, bool joins) {
  Request& r = table_[id];
  if (r.is_parked || (!r.is_swapped && r.computed_tokens > 0)) throw InternalError("swapping in a request that is on the GPU");
  if (!r.is_swapped) return take_stored(id, m);
  if (KvOffer* offer = transits_.offer(id); offer != nullptr) return try_import(id, m, *offer);
  if (!memory_.try_swap_in(r, m)) return false;
  SwapCopy copy = memory_.copy_in(id);
  queues_.note_return(id);
  plan_was_quiet_ = false;
  copy.joins = joins && waits_for(copy);
  swap_copies_.push_back(std::move(copy));
  r.is_parked = !swap_copies_.back().joins;
  if (!r.is_parked) bring_in(id, now_);
  return true;
}

// The planned step waits for this copy in.
bool ReplicaState::waits_for(const SwapCopy& copy) {
  if (memory_.limits().swap.overlap != SwapSetup::Overlap::kAdaptive || !memory_.keeps_everything()) return false;
  if (!estimate_step || !estimate_copies_in) return false;
  StepOutline outline;
  outline.decodes = static_cast<std::int32_t>(queues_.running().size()) + 1;
  outline.decode_kv_tokens = table_[copy.request].held_tokens();
  for (const RequestId id : queues_.running()) outline.decode_kv_tokens += table_[id].held_tokens();
  swap_copies_.push_back(copy);
  const Picoseconds from = std::max(copies_out_.end_of(copy.request), copies_out_.free_at(table_[copy.request].blocks));
  const Span end = std::max(Span{0}, to_time(from) - now_) + estimate_copies_in(swap_copies_, now_);
  swap_copies_.pop_back();
  if (!waits_for_copy_in(outline.decodes - 1, estimate_step(outline), waited_, end)) return false;
  waited_ = end;
  return true;
}

// The copy has ended, or the step waits for it. Frees CPU memory.
void ReplicaState::bring_in(RequestId id, Time at) {
  decoded_blocks_ += table_[id].swapped_blocks;
  memory_.finish_swap_in(id);
  note(RequestEvent::kSwappedIn, table_[id], at);
}

void ReplicaState::finish_swap_in(RequestId id, Time at) {
  Request& r = table_[id];
  r.is_parked = false;
  if (r.is_leaving) {
    r.is_leaving = false;
    leaving_blocks_ -= r.swapped_blocks;
    memory_.release(r);
    return;
  }
  if (transits_.offer(id) == nullptr) return bring_in(id, at);
  memory_.end_swap(r);
  transits_.settle(id);
  note(RequestEvent::kImported, r, at);
  if (!r.left_hashed) memory_.publish_up_to(r, r.computed_tokens);
}

// With a codec: work of swaps since the step before. False: none.
bool ReplicaState::charge_copies(InFlightStep& step) {
  const SwapCodec& codec = memory_.limits().swap.codec;
  if (step.is_empty() || encoded_blocks_ + decoded_blocks_ == 0) return false;
  const auto add = [&](PolicyOp op, std::int64_t blocks) {
    op.bytes *= blocks;
    op.flops *= blocks;
    if (blocks > 0) add_op(step.policy.ops, op);
  };
  add(codec.encode, std::exchange(encoded_blocks_, 0));
  add(codec.decode, std::exchange(decoded_blocks_, 0));
  return true;
}

}  // namespace kvlab
