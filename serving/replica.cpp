#include "serving/replica.h"

#include <algorithm>

#include "base/checked_time.h"

namespace kvlab {

void Device::finish(InFlightStep& /*step*/) { throw InternalError("this device times steps as they begin"); }

namespace {

ReplicaLimits limits_of(const HostSetup& setup, std::uint32_t number, const Scheduler& scheduler, const Device::Traits& traits) {
  ReplicaLimits limits;
  limits.block_tokens = setup.memory.block_tokens;
  limits.max_model_len = setup.max_model_len;
  limits.host_blocks = setup.memory.host_blocks;
  limits.is_contiguous = scheduler.wants_contiguous_memory();
  limits.prefix_caching = setup.memory.prefix_caching && !limits.is_contiguous;
  limits.unnamed_rest = traits.unnamed_rest;
  limits.plans_over_unknown = scheduler.pipeline_depth() > 1 && traits.num_stages == 1;
  limits.count_from = kStart + setup.warmup;
  limits.replica = number;
  return limits;
}

std::unique_ptr<BlockPool> make_pool(const HostSetup& setup) {
  std::unique_ptr<BlockCache> cache = setup.make_block_cache();
  BlockCache& oracle = *cache;
  auto pool =
      std::make_unique<BlockPool>(static_cast<std::uint32_t>(setup.memory.num_blocks), setup.memory.pages_per_block, std::move(cache));
  if (oracle.needs_future()) oracle.set_future(setup.future_keys);  // the pool has reset it
  return pool;
}

}  // namespace

Replica::Replica(const FleetContext& fleet, std::uint32_t number, std::unique_ptr<Device> device)
    : setup_(fleet.setup),
      queue_(fleet.queue),
      clock_(fleet.clock),
      sink_(fleet.sink),
      itl_(fleet.itl),
      number_(number),
      scheduler_(setup_.make_scheduler()),
      device_(std::move(device)),
      traits_(device_->traits()),
      depth_(traits_.num_stages > 1 ? traits_.num_stages : scheduler_->pipeline_depth()),
      state_(limits_of(setup_, number, *scheduler_, traits_), make_pool(setup_), setup_.make_footprint()),
      ring_(static_cast<std::size_t>(depth_)),
      fast_forward_(setup_.fast_forward && traits_.num_stages == 1 && !sink_.wants_steps()),
      wants_steps_(sink_.wants_steps()),
      wants_events_(wants_steps_ || traits_.wants_events) {
  state_.memory().lookup_log = setup_.record_lookups;
  if (wants_events_) state_.events = &events_;
  device_->attach(state_, *scheduler_);
}

void Replica::receive(const TraceRequest& request, Picoseconds at) {
  const std::size_t before = state_.outbox().size();
  state_.receive(request, to_time(at));
  if (state_.outbox().size() == before) device_->on_receive(request, state_.queues().input().back());
  if (stretch_.iterations > 0) {  // the next plan sees it
    stretch_.iterations = 0;
    schedule_next();
  }
  if (count_ == 0 && !plan_pending_ && !state_.queues().input().empty()) queue_plan(clock_.now(at));
}

void Replica::handle(const Event& event, Picoseconds next_arrival) {
  if (event.kind == EventKind::kSwapEnd) {
    catch_up(event.at, false);
    stretch_.iterations = 0;
    state_.finish_swap_in(RequestId{event.subject}, to_time(event.at));
    if (count_ > 0)
      schedule_next();
    else if (!plan_pending_)
      queue_plan(clock_.now(event.at));
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
  if (plan_pending_) return;
  // If nothing else happens at this instant before its plan, the plan need not be queued. A request that has left may be followed at once.
  const Picoseconds now = clock_.now(event.at);
  const bool is_alone = now == event.at && next_arrival > now && (queue_.is_empty() || queue_.top().at > now) && state_.outbox().empty();
  if (is_alone)
    plan(now);
  else
    queue_plan(now);
}

void Replica::catch_up(Picoseconds at, bool with_plans) {
  if (stretch_.iterations > 0) {
    const std::int64_t done = iterations_before(at, with_plans);
    if (done > 0) carry_out(done);
  }
  if (count_ == 0 || plan_pending_ || in_flight(0).end > at) return;
  if (in_flight(0).end < at) throw InternalError("a replica fell behind the clock");
  if (with_plans) return;  // its own event at this instant comes before any sample
  stretch_.iterations = 0;
  ++generation_;
  process_oldest(at);
  queue_plan(clock_.now(at));
}

void Replica::process_oldest(Picoseconds at) {
  InFlightStep& step = in_flight(0);
  if (!step.is_counted) count_step(step, last_output_);
  last_output_ = at;
  head_ = (head_ + 1) % depth_;
  --count_;
  state_.process_output(step, at, itl_);
  tell_scheduler();
  if (wants_events_) forward_events();
}

void Replica::queue_plan(Picoseconds at) {
  plan_pending_ = true;
  queue_.push(at, Phase::kSchedule, EventKind::kPlan, number_, 0);
}

void Replica::plan(Picoseconds at) {
  while (count_ < depth_ && plan_one(at)) at = clock_.now(at);
  if (count_ == 0) return;
  if (fast_forward_ && count_ == depth_) look_ahead();
  schedule_next();
}

bool Replica::plan_one(Picoseconds at) {
  state_.begin_plan(to_time(at));
  InFlightStep& step = in_flight(count_);
  step.clear();
  scheduler_->plan(state_, step);
  tell_scheduler();
  if (wants_events_) forward_events();
  const Picoseconds copies_end = start_copies(at);
  if (step.is_empty()) {
    wake_at(at);
    return false;
  }
  state_.commit(step);
  step.number = next_step_++;
  step.planned = at;
  step.usage = {state_.num_waiting(), state_.used_blocks(), state_.memory().wasted_tokens(), state_.memory().external_fragmentation_ppm()};
  step.is_timed = device_->begin(step, std::max(at, copies_end));
  step.is_counted = false;
  ++count_;
  if (step.is_timed) count_step(step, count_ > 1 ? in_flight(count_ - 2).end : step.start);
  return true;
}

// A scheduler that waits for time to pass (a batching window) says so; with nothing in flight no other event would ask it again.
void Replica::wake_at(Picoseconds at) {
  if (count_ > 0 || plan_pending_) return;
  const Time wake = scheduler_->wants_plan_at();
  if (wake == kNever) return;
  // Not plan_pending_: an arrival before it is planned at once.
  const Picoseconds due = checked_ps(wake, "the scheduler's batching window ends later than that");
  queue_.push(std::max(at + to_ps(Span(1)), due), Phase::kSchedule, EventKind::kPlan, number_, ++wake_generation_);
}

// Steps of a pipeline overlap: time that several share counts once. `before`: when the step before it ends.
void Replica::count_step(InFlightStep& step, Picoseconds before) {
  totals_.add(step, step.end - (traits_.num_stages == 1 ? step.start : std::max(step.start, before)));
  step.is_counted = true;
  if (wants_steps_) sink_.step(step, state_);
}

Picoseconds Replica::busy_after(Picoseconds end) {
  Picoseconds sum;
  for (int i = 0; i < count_ && in_flight(i).is_counted; ++i) {
    const Picoseconds from = std::max(end, in_flight(i).start);
    sum += std::max(Picoseconds{}, in_flight(i).end - from);
    end = std::max(end, in_flight(i).end);
  }
  return sum;
}

// Starts the plan's copies; returns when the last copy out of GPU memory ends, which the step waits for.
Picoseconds Replica::start_copies(Picoseconds at) {
  Picoseconds out_end;
  for (const SwapCopy& copy : state_.swap_copies()) {
    const Picoseconds end = device_->copy(copy, at);
    if (copy.to_host)
      out_end = std::max(out_end, end);
    else
      queue_.push(end, Phase::kComplete, EventKind::kSwapEnd, number_, index(copy.request));
  }
  state_.swap_copies().clear();
  return out_end;
}

void Replica::schedule_next() {
  if (count_ == 0) return;
  InFlightStep& oldest = in_flight(0);
  if (!oldest.is_timed) {
    device_->finish(oldest);
    oldest.is_timed = true;
  }
  const Picoseconds due = stretch_.iterations > 0 ? iteration_time(stretch_.iterations + 1) : oldest.end;
  queue_.push(due, Phase::kComplete, EventKind::kOutput, number_, ++generation_);
}

void Replica::tell_scheduler() {
  for (const RequestId id : state_.left()) scheduler_->on_finish(id);
  state_.left().clear();
}

void Replica::forward_events() {
  for (const RequestEventRecord& event : events_) {
    if (wants_steps_) sink_.event(event);
    device_->on_event(event);
  }
  events_.clear();
}

}  // namespace kvlab
