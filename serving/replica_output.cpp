// A replica's steps: from a plan to a step in flight, and from its output to tokens.
#include "serving/replica_state.h"

namespace kvlab {

void ReplicaState::commit(const StepPlan& plan, InFlightStep& step) {
  step.clear();
  step.idle_rows = plan.idle_rows;
  bool uniform = keeps_everything_ && plan.idle_rows == 0 && plan.entries.size() == running_.size();
  for (const PlanEntry& planned : plan.entries) {
    Request& r = table_[planned.request];
    StepEntry entry{planned.request,
                    planned.tokens,
                    r.computed_tokens,
                    r.computed_tokens,
                    planned.padded_tokens,
                    planned.layer_begin,
                    planned.layer_end,
                    false,
                    false};
    ++r.in_flight_steps;
    if (planned.layer_end > 0) {  // its tokens go on through later layers in later steps
      step.entries.push_back(entry);
      uniform = false;
      continue;
    }
    const std::int32_t known = r.known_tokens();
    const std::int32_t after = r.computed_tokens + planned.tokens;
    if (after > known) throw InternalError("a plan computes tokens that are not known");
    entry.emits = after == known;
    const std::int32_t held_before = r.held_tokens();
    if (!keeps_everything_) apply_policy(r, entry, step.entries.size());
    const std::int32_t recomputed = std::min(after, r.most_computed) - r.computed_tokens;
    if (recomputed > 0) {
      r.recomputed_tokens += recomputed;
      if (is_counted(r)) counters_.recomputed_tokens += recomputed;
    }
    counters_.prompt_tokens += std::max(0, std::min(after, r.prompt_tokens) - r.computed_tokens);
    set_computed(r, after);
    live_tokens_ += r.held_tokens() - held_before;
    if (entry.emits) ++r.in_flight_tokens;
    uniform = uniform && planned.tokens == 1 && planned.layer_begin == 0 && planned.padded_tokens == 0 && entry.emits &&
              entry.computed_before > 0;
    step.entries.push_back(entry);
  }
  charge_policy(step);
  step.is_uniform = uniform;
  step.running_version = running_version_;
}

// What the KV policy does to r in the step being committed. Its sizes hold for whatever is planned next.
void ReplicaState::apply_policy(Request& r, StepEntry& entry, std::size_t place) {
  const SeqState seq = seq_of(r, r.computed_tokens);
  charged_.push_back({seq, entry.tokens, 0});
  charged_places_.push_back(place);
  const FootprintStep done = footprint_->step(seq, entry.tokens);
  if (done.leaves_hashed) {
    r.left_hashed = true;
    entry.leaves_hashed = true;
  }
  entry.ends_prompt = done.ends_prompt;
  r.kept_pages = done.kept_pages;
  if (!r.left_hashed) return;
  r.kept_tokens = done.kept_tokens;
  r.row_tokens = done.held_tokens;
  r.pattern = done.pattern;
}

// What the policy computes in the step, and what attention reads under it.
void ReplicaState::charge_policy(InFlightStep& step) {
  if (charged_.empty()) return;
  footprint_->charge(charged_, step.policy);
  for (std::size_t i = 0; i < charged_.size(); ++i) step.entries[charged_places_[i]].kv_before = charged_[i].attended_tokens;
  charged_.clear();
  charged_places_.clear();
}

void ReplicaState::process_output(const InFlightStep& step, Picoseconds at, LogHistogram& itl) {
  now_ = Time(Span(at / kPsPerNs));
  hits_valid_ = false;
  for (const StepEntry& entry : step.entries) {
    Request& r = table_[entry.request];
    --r.in_flight_steps;
    if (!keeps_everything_) end_policy_step(r, entry);
    if (!entry.emits) continue;
    deliver(r, at, itl);
    if (r.emitted_tokens < r.output_limit) {
      if (r.is_running && !r.left_hashed) publish_up_to(r, r.computed_tokens - r.in_flight_tokens);
      continue;
    }
    if (r.is_running)
      remove_from_running(entry.request);
    else
      remove_from_waiting(entry.request);
    if (r.is_swapped) {
      host_used_ -= r.swapped_blocks;
      --num_swapped_;
    }
    leave(entry.request, Outcome::kCompleted, nullptr, now_);
  }
}

void ReplicaState::deliver(Request& r, Picoseconds at, LogHistogram& itl) {
  --r.in_flight_tokens;
  ++r.emitted_tokens;
  ++counters_.output_tokens;
  if (r.last_token_ps < 0) {
    r.first_token = now_;
    note(RequestEvent::kFirstToken, r, now_);
  } else if (is_counted(r)) {
    itl.add(at - r.last_token_ps);
  }
  r.last_token_ps = at;
}

// The device has applied the policy: what the step reserved beyond what is kept goes back. What was rewritten in blocks that go back takes
// less than they had.
void ReplicaState::end_policy_step(Request& r, const StepEntry& entry) {
  const std::int64_t before = allocated(r);
  const bool gives_blocks = entry.leaves_hashed && r.left_hashed && !r.blocks.empty();  // none where it was preempted meanwhile
  if (entry.leaves_hashed && r.left_hashed) release_blocks(r);
  const std::int64_t surplus = r.pages - r.kept_pages;
  if (r.left_hashed && r.in_flight_steps == 0 && surplus > 0) {
    pool_->return_pages(surplus);
    r.pages -= surplus;
  } else if (gives_blocks && surplus < 0) {
    pool_->take_pages(-surplus);
    r.pages = r.kept_pages;
  }
  allocated_tokens_ += allocated(r) - before;
}

}  // namespace kvlab
