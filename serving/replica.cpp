#include "serving/replica.h"

#include <algorithm>
#include <utility>

#include "base/checked_time.h"

namespace kvlab {

void Device::finish(InFlightStep& /*step*/) { throw InternalError("this device times steps as they begin"); }

namespace {

std::vector<std::unique_ptr<Rank>> make_ranks(const HostSetup& setup, const PoolSetup& pool, std::uint32_t number,
                                              std::vector<std::unique_ptr<Device>> devices) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (auto& device : devices) ranks.push_back(std::make_unique<Rank>(setup, pool, number++, std::move(device)));
  return ranks;
}

}  // namespace

Replica::Replica(const FleetContext& fleet, const PoolSetup& pool, std::uint32_t first_rank, std::vector<std::unique_ptr<Device>> devices)
    : pool_(pool),
      queue_(fleet.queue),
      clock_(fleet.clock),
      sink_(fleet.sink),
      itl_(fleet.itl),
      transfers_(fleet.transfers),
      first_rank_(first_rank),
      ranks_(make_ranks(fleet.setup, pool, first_rank, std::move(devices))),
      first_(*ranks_.front()),
      traits_(first_.device->traits()),
      depth_(traits_.num_stages > 1 ? traits_.num_stages : first_.scheduler->pipeline_depth()),
      fast_forward_(fleet.setup.fast_forward && ranks_.size() == 1 && traits_.num_stages == 1 && !sink_.wants_steps()),
      wants_steps_(sink_.wants_steps()),
      wants_events_(wants_steps_ || traits_.wants_events) {
  for (const auto& rank : ranks_) {
    rank->ring.resize(static_cast<std::size_t>(depth_));
    if (wants_events_) rank->state.events = &rank->events;
  }
}

void Replica::receive(const TraceRequest& request, Time arrival, std::uint32_t number, Picoseconds at, bool prefill_only,
                      std::optional<KvOffer>&& prefix) {
  Rank& its = rank(number);
  const std::size_t before = its.state.outbox().size();
  its.state.receive(request, arrival, prefill_only, std::move(prefix));
  if (its.state.outbox().size() == before) its.device->on_receive(request, its.state.queues().input().back());
  begin_anew(its, at);
}

void Replica::receive_import(const Request& from, KvOffer offer, std::uint32_t number, Picoseconds at) {
  Rank& its = rank(number);
  its.state.receive_import(from, std::move(offer), to_time(at));
  begin_anew(its, at);
}

void Replica::rejoin(RequestId slot, std::uint32_t number, Picoseconds at) {
  Rank& its = rank(number);
  its.state.rejoin(slot, to_time(at));
  plan_anew(its, at);
}

void Replica::release_export(RequestId slot, std::uint32_t number, Picoseconds at) {
  rank(number).state.release_export(slot);
  plan_anew(rank(number), at);
}

void Replica::refuse_export(RequestId slot, std::uint32_t number, Picoseconds at, const char* reason) {
  rank(number).state.refuse_export(slot, to_time(at), reason);
  plan_anew(rank(number), at);
}

// Memory of a rank has come back, or a request. Running ones may wait for it too: a part of a prompt that found no room.
void Replica::plan_anew(const Rank& rank, Picoseconds at) {
  end_stretch();
  const bool has_work = rank.state.queues().num_queued() > 0 || !rank.state.queues().running().empty();
  if (count_ == 0 && !plan_pending_ && has_work) queue_plan(clock_.now(at));
}

void Replica::set_watched(bool is_watched) {
  is_watched_ = is_watched;
  if (is_watched) end_stretch();
}

// The next step is planned.
void Replica::end_stretch() {
  if (stretch_.iterations == 0) return;
  stretch_.iterations = 0;
  schedule_next();
}

// A request has come into the input queue of a rank.
void Replica::begin_anew(const Rank& rank, Picoseconds at) {
  end_stretch();  // the next plan sees it
  if (count_ == 0 && !plan_pending_ && !rank.state.queues().input().empty()) queue_plan(clock_.now(at));
}

// kSwapEnd, kImportEnd or kStoreEnd.
void Replica::end_copy(const Event& event) {
  catch_up(event.at, false);
  Rank& its = rank(event.replica);
  if (event.kind == EventKind::kStoreEnd) {
    its.state.memory().end_write(RequestId{event.subject});
    return plan_anew(its, event.at);
  }
  stretch_.iterations = 0;
  its.state.finish_swap_in(RequestId{event.subject}, to_time(event.at));
  if (count_ > 0)
    schedule_next();
  else if (!plan_pending_)
    queue_plan(clock_.now(event.at));
}

void Replica::handle(const Event& event, Picoseconds next_arrival) {
  if (event.kind == EventKind::kPlan) {
    const bool is_wake = event.subject != 0;
    if (is_wake && (event.subject != wake_generation_ || count_ > 0 || plan_pending_)) return;
    if (!is_wake) plan_pending_ = false;
    plan(event.at);
    return;
  }
  if (event.kind != EventKind::kOutput) return end_copy(event);
  if (event.subject != generation_) return;
  if (stretch_.iterations > 0) carry_out(stretch_.iterations);
  process_oldest(event.at);
  if (plan_pending_) return;
  // If nothing else happens at this instant before its plan, the plan need not be queued. A request that has left may be followed at once.
  const Picoseconds now = clock_.now(event.at);
  const bool is_alone =
      !is_watched_ && now == event.at && next_arrival > now && (queue_.is_empty() || queue_.top().at > now) && !has_output();
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

// A request has left, or continues elsewhere, and is still here.
bool Replica::has_output() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return !rank->state.outbox().empty() || !rank->state.handover().is_quiet(); });
}

void Replica::process_oldest(Picoseconds at) {
  if (!in_flight(0).is_counted) count_steps(0, last_output_);
  last_output_ = at;
  ++num_outputs_;
  for (const auto& rank : ranks_) {
    rank->state.process_output(in_flight(*rank, 0), at, itl_);
    if (!rank->state.store_copies().empty()) start_writes(*rank, at);
    tell_scheduler(*rank);
    if (wants_events_) forward_events(*rank);
  }
  head_ = (head_ + 1) % depth_;
  --count_;
}

void Replica::queue_plan(Picoseconds at) {
  plan_pending_ = true;
  queue_.push(at, Phase::kSchedule, EventKind::kPlan, first_rank_, 0);
}

void Replica::plan(Picoseconds at) {
  while (count_ < depth_ && plan_one(at)) at = clock_.now(at);
  if (count_ == 0) return;
  if (fast_forward_ && !is_watched_ && count_ == depth_) look_ahead();
  schedule_next();
}

bool Replica::plan_one(Picoseconds at) {
  bool has_work = false, has_preempted = false;
  for (const auto& rank : ranks_) {
    copies_end_ = std::max(copies_end_, plan_rank(*rank, at));
    has_work = has_work || !in_flight(*rank, count_).is_empty();
    has_preempted = has_preempted || rank->state.plan_preempted();
  }
  if (has_work) {
    begin(at, std::max(at, std::exchange(copies_end_, Picoseconds{})));
    return true;
  }
  // With nothing in flight no event would ask again, though others can run in the blocks that were released. It comes to an end: each
  // such plan leaves fewer running requests.
  if (count_ == 0 && has_preempted)
    queue_plan(std::max(clock_.now(at), copies_end_));
  else
    wake_at(at);
  return false;
}

// Returns when the plan's copies allow its step to start.
Picoseconds Replica::plan_rank(Rank& rank, Picoseconds at) {
  rank.state.begin_plan(to_time(at));
  InFlightStep& step = in_flight(rank, count_);
  step.clear();
  rank.scheduler->plan(rank.state, step);
  tell_scheduler(rank);
  if (wants_events_) forward_events(rank);
  return start_copies(rank, at);
}

// Starts the step that was planned; a rank without work takes part in it with an empty one.
void Replica::begin(Picoseconds planned, Picoseconds ready) {
  const int i = count_++;
  for (const auto& rank : ranks_) {
    InFlightStep& step = in_flight(*rank, i);
    const ReplicaState& state = rank->state;
    rank->state.commit(step);
    step.number = next_step_;
    step.planned = planned;
    step.usage = {state.num_waiting(), state.used_blocks(), state.memory().wasted_tokens(), state.memory().external_fragmentation_ppm()};
    step.is_timed = rank->device->begin(step, ready);
    step.is_counted = false;
  }
  ++next_step_;
  if (ranks_.size() > 1) {
    for (const auto& rank : ranks_) rank->device->finish(in_flight(*rank, i));
    for (const auto& rank : ranks_) in_flight(*rank, i).is_timed = true;
  }
  if (in_flight(i).is_timed) count_steps(i, i > 0 ? in_flight(i - 1).end : in_flight(i).start);
}

// A scheduler that waits for time to pass (a batching window) says so; with nothing in flight no other event would ask it again.
void Replica::wake_at(Picoseconds at) {
  if (count_ > 0 || plan_pending_) return;
  Time wake = kNever;
  for (const auto& rank : ranks_) wake = std::min(wake, rank->scheduler->wants_plan_at());
  if (wake == kNever) return;
  // Not plan_pending_: an arrival before it is planned at once.
  const Picoseconds due = checked_ps(wake, "the scheduler's batching window ends later than that");
  queue_.push(std::max(at + to_ps(Span(1)), due), Phase::kSchedule, EventKind::kPlan, first_rank_, ++wake_generation_);
}

// Steps of a pipeline overlap. Time that several share counts once, for the earliest of them. `before`: when the step before it ends.
void Replica::count_steps(int i, Picoseconds before) {
  for (const auto& rank : ranks_) {
    InFlightStep& step = in_flight(*rank, i);
    totals_.add(step, step.end - (traits_.num_stages == 1 ? step.start : std::max(step.start, before)));
    step.is_counted = true;
    if (wants_steps_ && !step.is_empty()) sink_.step(step, rank->state);
  }
}

Picoseconds Replica::busy_after(Picoseconds end) {
  Picoseconds sum;
  for (int i = 0; i < count_ && in_flight(i).is_counted; ++i) {
    const Picoseconds from = std::max(end, in_flight(i).start);
    sum += std::max(Picoseconds{}, in_flight(i).end - from);
    end = std::max(end, in_flight(i).end);
  }
  return sum * static_cast<std::int64_t>(ranks_.size());
}

// Starts the plan's copies; returns when the last one ends that the step waits for: out of GPU memory, of blocks that it writes to, or of
// requests that come back and take part in it.
Picoseconds Replica::start_copies(Rank& rank, Picoseconds at) {
  Picoseconds out_end;
  CopiesOut& beside = rank.state.copies_out();
  for (const SwapCopy& copy : rank.state.swap_copies()) {
    if (copy.is_import) {
      const Picoseconds end = start_import(rank, copy, at);
      queue_.push(end, Phase::kDispatch, EventKind::kImportEnd, rank.state.memory().limits().replica, index(copy.request));
      continue;
    }
    const std::span<const BlockId> blocks = rank.state.table()[copy.request].blocks;
    const Picoseconds from = copy.to_host ? at : std::max({at, beside.end_of(copy.request), beside.free_at(blocks)});
    const Picoseconds end = rank.device->copy(copy, from);
    if (copy.to_host) beside.forget(copy.request);
    if (!copy.beside.empty())
      beside.begin(copy.request, copy.beside, end);
    else if (copy.joins || (copy.to_host && !copy.is_ahead))
      out_end = std::max(out_end, end);
    else
      queue_.push(end, Phase::kComplete, EventKind::kSwapEnd, rank.state.memory().limits().replica, index(copy.request));
  }
  rank.state.swap_copies().clear();
  if (std::vector<BlockId>& taken = rank.state.memory().taken(); !taken.empty()) {
    out_end = std::max(out_end, beside.free_at(taken));
    taken.clear();
  }
  return out_end;
}

// Returns when the request's KV is here.
Picoseconds Replica::start_import(Rank& rank, const SwapCopy& copy, Picoseconds at) {
  const KvOffer& offer = *rank.state.handover().offer(copy.request);
  const Request& r = rank.state.table()[copy.request];
  const Picoseconds start = std::max(at, rank.state.copies_out().free_at(r.blocks));
  if (offer.is_prefix) return start_prefix(rank, copy, offer, start);
  const bool has_waited = offer.has_waited || start > at;
  KvFetch fetch{
      offer.replica, offer.to_replica, copy.blocks, copy.blocks * pool_.memory.block_bytes, copy.blocks, has_waited ? start : offer.begun,
      offer.ready};
  if (!r.left_hashed && static_cast<std::int64_t>(offer.blocks.size()) >= copy.blocks) {
    const auto count = static_cast<std::size_t>(copy.blocks);
    const std::size_t first = offer.blocks.size() - count;
    fetch.runs = adjacent_runs(std::span(offer.blocks).subspan(first), std::span(r.blocks).subspan(first, count));
  }
  if (has_waited) fetch.ready = start;
  const Transfers::Times times = transfers_.begin(fetch, start);
  sink_.transfer({r.number, offer.rank, rank.state.memory().limits().replica, r.computed_tokens, fetch.bytes, times.calls,
                  to_time(offer.ready), to_time(start), to_time(times.end)});
  return times.end;
}

void Replica::schedule_next() {
  if (count_ == 0) return;
  InFlightStep& oldest = in_flight(0);
  if (!oldest.is_timed) {
    first_.device->finish(oldest);
    oldest.is_timed = true;
  }
  const Picoseconds due = stretch_.iterations > 0 ? iteration_time(stretch_.iterations + 1) : oldest.end;
  queue_.push(due, Phase::kComplete, EventKind::kOutput, first_rank_, ++generation_);
}

void Replica::tell_scheduler(Rank& rank) {
  for (const RequestId id : rank.state.left()) rank.scheduler->on_finish(id);
  rank.state.left().clear();
}

void Replica::forward_events(Rank& rank) {
  for (const RequestEventRecord& event : rank.events) {
    if (wants_steps_) sink_.event(event);
    rank.device->on_event(event);
  }
  rank.events.clear();
}

}  // namespace kvlab
