#include "serving/replicas.h"

#include <algorithm>
#include <utility>

#include "base/checked_time.h"

namespace kvlab {

namespace {

// As SGLang's num_tokens (python/sglang/srt/managers/scheduler.py, get_load): KV tokens in use and waiting prompts. A chunked prompt counts
// for its computed part.
std::int64_t tokens_of(const ReplicaState& rank) {
  std::int64_t queued = rank.table().outstanding_prompt_tokens();
  for (const RequestId r : rank.running()) {
    const Request& running = rank.table()[r];
    queued -= std::max(0, running.prompt_tokens - running.computed_tokens);
  }
  return rank.used_blocks() * rank.block_tokens() + queued;
}

// Lower is better; the second breaks ties.
std::pair<std::int64_t, std::int64_t> load_of(const ReplicaState& rank, LoadBalance balance) {
  constexpr std::int64_t kWaitingWeight = 4;  // vLLM
  const std::int64_t queued = rank.queues().num_queued(), running = static_cast<std::int64_t>(rank.running().size());
  if (balance == LoadBalance::kTotalTokens) return {tokens_of(rank), queued + running};
  return {(balance == LoadBalance::kVllm ? kWaitingWeight : 1) * queued + running, 0};
}

}  // namespace

Replicas::Replicas(const FleetContext& fleet, const MakeDevice& make_device) {
  for (std::uint32_t p = 0; p < fleet.setup.num_pools(); ++p) {
    const PoolSetup& pool = fleet.setup.pool(p);
    const std::uint32_t together = pool.steps_together ? pool.ranks : 1;
    for (std::uint32_t i = 0; i < pool.num_replicas; ++i) {
      const ReplicaId replica{num_replicas()};
      places_.push_back({p, num_ranks(), pool.ranks, pool.load_balance});
      for (std::uint32_t j = 0; j < pool.ranks; j += together) {
        std::vector<std::unique_ptr<Device>> devices;
        for (std::uint32_t k = 0; k < together; ++k) devices.push_back(make_device(p));
        units_.push_back(std::make_unique<Replica>(fleet, pool, num_ranks(), std::move(devices)));
        of_rank_.insert(of_rank_.end(), together, {replica, static_cast<std::uint32_t>(units_.size() - 1)});
      }
      add_store(fleet.setup.store, pool);
    }
  }
}

// For the latest replica, if its pool has a store.
void Replicas::add_store(const StoreSetup& setup, const PoolSetup& pool) {
  const Place& its = places_.back();
  const bool has_one = setup.is_on() && pool.store_blocks > 0 && state(its.first_rank).memory().limits().prefix_caching;
  stores_.push_back(has_one ? std::make_unique<NodeStore>(pool.store_blocks, setup.block_tokens, setup.make_eviction()) : nullptr);
  for (std::uint32_t rank = its.first_rank; rank < its.first_rank + its.ranks; ++rank) state(rank).memory().store = stores_.back().get();
}

ReplicaLoad Replicas::load(ReplicaId replica) const {
  const Place& its = place(replica);
  ReplicaLoad load;
  for (std::uint32_t rank = its.first_rank; rank < its.first_rank + its.ranks; ++rank) {
    const ReplicaState& of = state(rank);
    load.waiting += of.queues().num_queued();
    load.running += static_cast<std::int64_t>(of.running().size());
    load.outstanding_tokens += of.table().outstanding_prompt_tokens() - of.transits().expected_tokens();
    load.used_blocks += of.used_blocks();
    load.num_blocks += of.num_blocks();
  }
  return load;
}

bool Replicas::is_empty(ReplicaId replica) const {
  const Place& its = place(replica);
  for (std::uint32_t rank = its.first_rank; rank < its.first_rank + its.ranks; ++rank)
    if (state(rank).table().live() > 0) return false;
  return true;
}

std::int64_t Replicas::total_tokens(ReplicaId replica) const {
  const Place& its = place(replica);
  std::int64_t tokens = 0;
  for (std::uint32_t rank = its.first_rank; rank < its.first_rank + its.ranks; ++rank) tokens += tokens_of(state(rank));
  return tokens;
}

// A request just sent to a rank counts as waiting.
std::uint32_t Replicas::choose_rank(ReplicaId replica) const {
  const Place& its = place(replica);
  if (its.ranks == 1) return its.first_rank;
  if (its.load_balance == LoadBalance::kRoundRobin) return its.first_rank + its.num_sent % its.ranks;
  std::uint32_t best = its.first_rank;
  std::pair least = load_of(state(best), its.load_balance);
  for (std::uint32_t rank = best + 1; rank < its.first_rank + its.ranks; ++rank) {
    const std::pair load = load_of(state(rank), its.load_balance);
    if (!(load < least)) continue;
    best = rank;
    least = load;
  }
  return best;
}

std::uint32_t Replicas::take_rank(ReplicaId replica) {
  const std::uint32_t rank = choose_rank(replica);
  ++places_[index(replica)].num_sent;
  return rank;
}

void Device::finish(InFlightStep& /*step*/) { throw InternalError("this device times steps as they begin"); }

namespace {

std::vector<std::unique_ptr<Rank>> make_ranks(const FleetContext& fleet, const PoolSetup& pool, std::uint32_t number,
                                              std::vector<std::unique_ptr<Device>> devices) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (auto& device : devices) ranks.push_back(std::make_unique<Rank>(fleet, pool, number++, std::move(device)));
  return ranks;
}

}  // namespace

Replica::Replica(const FleetContext& fleet, const PoolSetup& pool, std::uint32_t first_rank, std::vector<std::unique_ptr<Device>> devices)
    : queue_(fleet.queue),
      clock_(fleet.clock),
      sink_(fleet.sink),
      first_rank_(first_rank),
      ranks_(make_ranks(fleet, pool, first_rank, std::move(devices))),
      first_(*ranks_.front()),
      ahead_(first_.state, *first_.scheduler, *first_.device, first_.steps, done_, fleet.itl),
      is_piped_(first_.device->traits().num_stages > 1),
      may_skip_steps_(fleet.setup.fast_forward && ranks_.size() == 1 && !is_piped_ && !sink_.wants_steps()),
      is_only_(fleet.setup.num_pools() == 1 && pool.num_replicas == 1 && pool.ranks == 1) {}

void Replica::note_input(const Rank& rank, Picoseconds at) {
  end_stretch();
  if (is_idle() && !rank.state.queues().input().empty()) queue_plan(clock_.now(at));
}

// Running requests may wait for memory too, for a chunk of a prompt.
void Replica::note_return(const Rank& rank, Picoseconds at) {
  end_stretch();
  const bool has_work = rank.state.queues().num_queued() > 0 || !rank.state.queues().running().empty();
  if (is_idle() && has_work) queue_plan(clock_.now(at));
}

void Replica::set_watched(bool is_watched) {
  is_watched_ = is_watched;
  if (is_watched) end_stretch();
}

void Replica::end_repeated_plans(Picoseconds at) {
  if (!ahead_.is_on() || first_.state.num_waiting() == 0) return;
  ahead_.carry_out_before(at, false);
  end_stretch();
}

void Replica::end_stretch() {
  if (ahead_.stop()) schedule_next();
}

void Replica::end_copy(const Event& event) {
  catch_up(event.at, false);
  Rank& its = rank(event.replica);
  its.end_copy(event);
  if (event.kind == EventKind::kStoreEnd) return note_return(its, event.at);
  ahead_.stop();
  if (!first_.steps.is_empty())
    schedule_next();
  else if (!plan_pending_)
    queue_plan(clock_.now(event.at));
}

void Replica::handle(const Event& event, Picoseconds next_arrival) {
  if (event.kind == EventKind::kPlan) {
    const bool is_wake = event.subject != 0;
    if (is_wake && (event.subject != wake_generation_ || !is_idle())) return;
    if (!is_wake) plan_pending_ = false;
    plan(event.at, next_arrival);
    return;
  }
  if (event.kind != EventKind::kOutput) return end_copy(event);
  if (event.subject != generation_) return;
  ahead_.carry_out_all();
  process_oldest(event.at);
  if (plan_pending_) return;
  // A plan that is next at this instant need not be queued. A request that has left may be followed at once.
  const Picoseconds now = clock_.now(event.at);
  const bool is_alone =
      !is_watched_ && now == event.at && next_arrival > now && (queue_.is_empty() || queue_.top().at > now) && !has_output();
  if (is_alone)
    plan(now, next_arrival);
  else
    queue_plan(now);
}

void Replica::catch_up(Picoseconds at, bool with_plans) {
  ahead_.carry_out_before(at, with_plans);
  if (first_.steps.is_empty() || plan_pending_ || first_.steps.oldest().end > at) return;
  if (first_.steps.oldest().end < at) throw InternalError("a step of a replica ended before the clock's time");
  if (with_plans) return;  // its own event comes before any sample
  ahead_.stop();
  ++generation_;
  process_oldest(at);
  queue_plan(clock_.now(at));
}

// A request has left or continues elsewhere, and is not collected.
bool Replica::has_output() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return !rank->state.outbox().empty() || !rank->state.transits().is_quiet(); });
}

void Replica::process_oldest(Picoseconds at) {
  if (!first_.steps.oldest().is_counted) count_steps(0, done_.last_output);
  done_.last_output = at;
  ++done_.outputs;
  for (const auto& rank : ranks_) {
    rank->process_output(at);
    rank->steps.pop();
  }
}

void Replica::queue_plan(Picoseconds at) {
  plan_pending_ = true;
  queue_.push(at, Phase::kSchedule, EventKind::kPlan, first_rank_, 0);
}

void Replica::plan(Picoseconds at, Picoseconds next_arrival) {
  while (!first_.steps.is_full() && plan_one(at)) at = clock_.now(at);
  if (first_.steps.is_empty()) return;
  if (may_skip_steps_ && !is_watched_ && first_.steps.is_full()) ahead_.look_ahead(is_only_ ? next_arrival : Picoseconds::max());
  schedule_next();
}

bool Replica::plan_one(Picoseconds at) {
  bool has_work = false, has_preempted = false;
  for (const auto& rank : ranks_) {
    copies_end_ = std::max(copies_end_, rank->plan(at));
    has_work = has_work || !rank->steps.next().is_empty();
    has_preempted = has_preempted || rank->state.plan_preempted();
  }
  if (has_work) {
    begin(at, std::max(at, std::exchange(copies_end_, Picoseconds{})));
    return true;
  }
  // With nothing in flight, no other event plans again. This ends: each such plan leaves fewer running requests.
  if (first_.steps.is_empty() && has_preempted)
    queue_plan(std::max(clock_.now(at), copies_end_));
  else
    wake_at(at);
  return false;
}

// Ranks without work start an empty step.
void Replica::begin(Picoseconds planned, Picoseconds ready) {
  const int i = first_.steps.size();
  for (const auto& rank : ranks_) rank->begin(done_.planned, planned, ready);
  for (const auto& rank : ranks_) {
    InFlightStep& step = rank->steps.next();
    if (ranks_.size() > 1) {
      rank->device->finish(step);
      step.is_timed = true;
    }
    rank->steps.push();
  }
  ++done_.planned;
  StepRing& steps = first_.steps;
  if (steps[i].is_timed) count_steps(i, i > 0 ? steps[i - 1].end : steps[i].start);
}

// For batching windows: with nothing in flight, no other event plans again.
void Replica::wake_at(Picoseconds at) {
  if (!is_idle()) return;
  Time wake = kNever;
  for (const auto& rank : ranks_) wake = std::min(wake, rank->scheduler->wants_plan_at());
  if (wake == kNever) return;
  // Not plan_pending_: an earlier arrival is planned at once.
  const Picoseconds due = checked_ps(wake, "the scheduler's batching window ends later than that");
  queue_.push(std::max(at + to_ps(Span(1)), due), Phase::kSchedule, EventKind::kPlan, first_rank_, ++wake_generation_);
}

// Pipeline steps overlap; shared time counts for the earliest step. `before`: end of the step before.
void Replica::count_steps(int i, Picoseconds before) {
  for (const auto& rank : ranks_) {
    InFlightStep& step = rank->steps[i];
    done_.totals.add(step, step.end - (is_piped_ ? std::max(step.start, before) : step.start));
    step.is_counted = true;
    if (sink_.wants_steps() && !step.is_empty()) sink_.step(step, rank->state);
  }
}

Picoseconds Replica::busy_after(Picoseconds end) {
  Picoseconds sum;
  StepRing& steps = first_.steps;
  for (int i = 0; i < steps.size() && steps[i].is_counted; ++i) {
    const Picoseconds from = std::max(end, steps[i].start);
    sum += std::max(Picoseconds{}, steps[i].end - from);
    end = std::max(end, steps[i].end);
  }
  return sum * static_cast<std::int64_t>(ranks_.size());
}

void Replica::schedule_next() {
  if (first_.steps.is_empty()) return;
  InFlightStep& oldest = first_.steps.oldest();
  if (!oldest.is_timed) {
    first_.device->finish(oldest);
    oldest.is_timed = true;
  }
  const Picoseconds due = ahead_.is_on() ? ahead_.end() : oldest.end;
  queue_.push(due, Phase::kComplete, EventKind::kOutput, first_rank_, ++generation_);
}

}  // namespace kvlab
