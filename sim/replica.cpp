#include "sim/replica.h"

#include <algorithm>

#include "sim/cost/checked_time.h"

namespace kvlab {

namespace {

constexpr const char* kLateStep = "a step ends later than that";

Time time_of(Picoseconds at) { return Time(Span(at / kPsPerNs)); }

ReplicaLimits limits_of(const SimSetup& setup, std::uint32_t number, const Scheduler& scheduler, int num_stages) {
  ReplicaLimits limits;
  limits.block_tokens = setup.memory.block_tokens;
  limits.max_model_len = setup.max_model_len;
  limits.host_blocks = setup.memory.host_blocks;
  limits.is_contiguous = scheduler.wants_contiguous_memory();
  limits.prefix_caching = setup.memory.prefix_caching && !limits.is_contiguous;
  limits.plans_over_unknown = scheduler.pipeline_depth() > 1 && num_stages == 1;
  limits.count_from = kStart + setup.warmup;
  limits.replica = number;
  return limits;
}

std::unique_ptr<BlockPool> make_pool(const SimSetup& setup) {
  std::unique_ptr<BlockCache> cache = setup.make_block_cache();
  BlockCache& oracle = *cache;
  auto pool =
      std::make_unique<BlockPool>(static_cast<std::uint32_t>(setup.memory.num_blocks), setup.memory.pages_per_block, std::move(cache));
  if (oracle.needs_future()) oracle.set_future(setup.future_keys);  // the pool has reset it
  return pool;
}

}  // namespace

SimReplica::SimReplica(const SimSetup& setup, std::uint32_t number, EventQueue& queue, RunSink& sink, LogHistogram& itl)
    : setup_(setup),
      number_(number),
      queue_(queue),
      sink_(sink),
      itl_(itl),
      scheduler_(setup.make_scheduler()),
      cost_(setup.make_cost_model()),
      num_stages_(cost_->num_stages()),
      depth_(num_stages_ > 1 ? num_stages_ : scheduler_->pipeline_depth()),
      state_(limits_of(setup, number, *scheduler_, num_stages_), make_pool(setup), setup.make_footprint()),
      pricer_(*cost_, *scheduler_),
      to_host_(setup.swap_link),
      from_host_(setup.swap_link),
      ring_(static_cast<std::size_t>(depth_)),
      stage_free_(static_cast<std::size_t>(num_stages_), 0),
      fast_forward_(setup.fast_forward && num_stages_ == 1 && !sink.wants_steps()),
      wants_steps_(sink.wants_steps()) {
  state_.lookup_log = setup.record_lookups;
  if (state_.pool().cache().weighs_cost()) {
    state_.recompute_seconds = [cost = cost_.get()](std::int32_t tokens, std::int32_t kv_before) {
      return cost->prefill_seconds(tokens, kv_before);
    };
  }
  if (wants_steps_) state_.events = &events_;
}

void SimReplica::receive(const TraceRequest& request, std::uint64_t number, Picoseconds at, bool keeps_hashes) {
  state_.receive(request, number, time_of(at), keeps_hashes);
  if (stretch_.iterations > 0) {  // the next plan sees it
    stretch_.iterations = 0;
    schedule_next();
  }
  if (count_ == 0 && !plan_pending_ && state_.has_input()) {
    plan_pending_ = true;
    queue_.push(at, Phase::kSchedule, EventKind::kPlan, number_, 0);
  }
}

void SimReplica::handle(const Event& event, Picoseconds next_arrival) {
  if (event.kind == EventKind::kSwapEnd) {
    catch_up(event.at, false);
    stretch_.iterations = 0;
    state_.finish_swap_in(RequestId{event.subject}, time_of(event.at));
    if (count_ > 0)
      schedule_next();
    else if (!plan_pending_) {
      plan_pending_ = true;
      queue_.push(event.at, Phase::kSchedule, EventKind::kPlan, number_, 0);
    }
    return;
  }
  if (event.kind == EventKind::kPlan) {
    const bool is_wake = event.subject != 0;
    if (is_wake && (event.subject != wake_generation_ || count_ > 0 || plan_pending_)) return;
    if (!is_wake) plan_pending_ = false;
    plan(event.at);
    return;
  }
  if (event.subject != generation_) return;
  if (stretch_.iterations > 0) carry_out(stretch_.iterations);
  process_oldest(event.at);
  // Nothing else happens at this instant before its plan: no need to queue it. Who has left may be followed at once.
  const bool is_alone = next_arrival > event.at && (queue_.is_empty() || queue_.top().at > event.at) && state_.outbox().empty();
  if (is_alone && !plan_pending_) {
    plan(event.at);
  } else if (!plan_pending_) {
    plan_pending_ = true;
    queue_.push(event.at, Phase::kSchedule, EventKind::kPlan, number_, 0);
  }
}

void SimReplica::catch_up(Picoseconds at, bool with_plans) {
  if (stretch_.iterations > 0) {
    const std::int64_t done = iterations_before(at, with_plans);
    if (done > 0) carry_out(done);
  }
  if (count_ == 0 || in_flight(0).end > at || plan_pending_) return;
  if (in_flight(0).end < at) throw InternalError("a replica fell behind the clock");
  if (with_plans) return;  // its own event at this instant comes before any sample
  stretch_.iterations = 0;
  ++generation_;
  process_oldest(at);
  plan_pending_ = true;
  queue_.push(at, Phase::kSchedule, EventKind::kPlan, number_, 0);
}

void SimReplica::process_oldest(Picoseconds at) {
  InFlightStep& step = in_flight(0);
  last_output_ = at;
  head_ = (head_ + 1) % depth_;
  --count_;
  state_.process_output(step, at, itl_);
  for (const ReplicaState::Finished& finished : state_.outbox()) scheduler_->on_finish(finished.id);
  if (wants_steps_) forward_events();
}

void SimReplica::plan(Picoseconds at) {
  while (count_ < depth_ && plan_one(at)) {
  }
  if (count_ == 0) return;
  if (fast_forward_ && count_ == depth_) look_ahead();
  schedule_next();
}

bool SimReplica::plan_one(Picoseconds at) {
  state_.begin_plan(time_of(at));
  plan_.clear();
  scheduler_->plan(state_, plan_);
  for (const ReplicaState::Finished& finished : state_.outbox()) scheduler_->on_finish(finished.id);
  const Picoseconds copies_end = start_copies(at);
  if (wants_steps_) forward_events();
  if (plan_.is_empty()) {
    wake_at(at);
    return false;
  }
  InFlightStep& step = in_flight(count_);
  state_.commit(plan_, step);
  step.number = next_step_++;
  const StepCost cost = pricer_.price(step);
  time_step(step, std::max(at, copies_end), cost);
  step.planned = at;
  ++count_;
  count_step(step, cost);
  if (wants_steps_) tell_sink(step);
  return true;
}

// A scheduler that waits for time to pass (a batching window) says so; with nothing in flight nobody else would ask it again.
void SimReplica::wake_at(Picoseconds at) {
  if (count_ > 0 || plan_pending_) return;
  const Time wake = scheduler_->wants_plan_at();
  if (wake == kNever) return;
  // Not plan_pending_: an arrival before it is planned at once.
  const Picoseconds due = multiply_time(ns(wake), kPsPerNs, "the scheduler's batching window ends later than that");
  queue_.push(std::max(at + kPsPerNs, due), Phase::kSchedule, EventKind::kPlan, number_, ++wake_generation_);
}

void SimReplica::time_step(InFlightStep& step, Picoseconds at, const StepCost& cost) {
  const Picoseconds ready = add_time(at, cost_->host_time(pricer_.shape()), kLateStep);
  if (num_stages_ == 1) {
    step.start = std::max(stage_free_[0], ready);
    step.end = add_time(step.start, cost.total, kLateStep);
    stage_free_[0] = step.end;
    return;
  }
  cost_->stage_times(pricer_.shape(), stage_times_);
  Picoseconds clock = ready;
  step.start = std::max(stage_free_[0], ready);
  for (std::size_t stage = 0; stage < stage_times_.size(); ++stage) {
    clock = add_time(std::max(clock, stage_free_[stage]), stage_times_[stage], kLateStep);
    stage_free_[stage] = clock;
  }
  step.end = clock;
}

void SimReplica::count_step(const InFlightStep& step, const StepCost& cost) {
  // Steps overlap in a pipeline: time that several share counts once.
  const Picoseconds before = count_ > 1 ? in_flight(count_ - 2).end : step.start;
  const Picoseconds occupied = num_stages_ == 1 ? cost.total : step.end - std::max(step.start, before);
  totals_.add_cost(cost, occupied);
  totals_.rows += static_cast<Int128>(step.entries.size());
  for (const StepEntry& entry : step.entries) totals_.tokens += entry.tokens;
  if (state_.num_waiting() > 0) totals_.overload += occupied;
  const std::int64_t used = state_.used_blocks();
  totals_.peak_used_blocks = std::max(totals_.peak_used_blocks, used);
  totals_.used_blocks += static_cast<Int128>(used) * occupied;
  totals_.wasted_tokens += static_cast<Int128>(state_.wasted_tokens()) * occupied;
  totals_.external_fragmentation += static_cast<Int128>(state_.external_fragmentation_ppm()) * occupied;
}

// What the steps still in flight occupy after `end`.
Picoseconds SimReplica::busy_after(Picoseconds end) {
  Picoseconds sum = 0;
  for (int i = 0; i < count_; ++i) {
    const Picoseconds from = std::max(end, in_flight(i).start);
    sum += std::max<Picoseconds>(0, in_flight(i).end - from);
    end = std::max(end, in_flight(i).end);
  }
  return sum;
}

// Puts the plan's copies on the links; answers when the last copy out of GPU memory has ended, which the step waits for.
Picoseconds SimReplica::start_copies(Picoseconds at) {
  Picoseconds out_end = 0;
  for (const SwapCopy& copy : state_.swap_copies()) {
    const std::int64_t bytes = copy.blocks * setup_.memory.block_bytes;
    if (copy.to_host) {
      out_end = std::max(out_end, to_host_.transfer(at, bytes, copy.blocks));
    } else {
      const Picoseconds end = from_host_.transfer(at, bytes, copy.blocks);
      queue_.push(end, Phase::kComplete, EventKind::kSwapEnd, number_, index(copy.request));
    }
  }
  state_.swap_copies().clear();
  return out_end;
}

void SimReplica::schedule_next() {
  if (count_ == 0) return;
  const Picoseconds due = stretch_.iterations > 0 ? iteration_time(stretch_.iterations + 1) : in_flight(0).end;
  queue_.push(due, Phase::kComplete, EventKind::kOutput, number_, ++generation_);
}

void SimReplica::forward_events() {
  for (const RequestEventRecord& event : events_) sink_.event(event);
  events_.clear();
}

void SimReplica::tell_sink(const InFlightStep& step) {
  record_.replica = number_;
  record_.number = step.number;
  record_.planned = time_of(step.planned);
  record_.start = time_of(step.start);
  record_.end = time_of(step.end);
  record_.entries.clear();
  for (const StepEntry& entry : step.entries)
    record_.entries.push_back({state_.table()[entry.request].number, entry.tokens, entry.computed_before});
  record_.free_blocks = state_.free_blocks();
  record_.waiting = state_.num_waiting();
  sink_.step(record_);
}

}  // namespace kvlab
