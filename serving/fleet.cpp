#include "serving/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked_time.h"
#include "serving/host_summary.h"

namespace kvlab {

namespace {

constexpr Picoseconds kNoLimit = Picoseconds::max();

}  // namespace

Fleet::Fleet(const HostSetup& setup, const MakeDevice& make_device, Clock& clock, TraceSource& trace, RunSink& sink)
    : setup_(setup),
      clock_(clock),
      trace_(trace),
      sink_(sink),
      arrivals_(trace, setup.stop),
      metrics_(setup.slo, kStart + setup.warmup),
      together_(setup.steps_together ? setup.ranks : 1),
      last_counted_(num_ranks()) {
  if (setup.num_replicas > 1) {
    router_ = setup.make_router();
    router_->set_seed(setup.seed);
  }
  const FleetContext context{setup, queue_, clock, sink, metrics_.itl()};
  for (std::uint32_t first = 0; first < num_ranks(); first += together_) {
    std::vector<std::unique_ptr<Device>> devices;
    for (std::uint32_t i = 0; i < together_; ++i) devices.push_back(make_device());
    replicas_.push_back(std::make_unique<Replica>(context, first, std::move(devices)));
  }
}

ServingSummary Fleet::run() {
  const Picoseconds stop = setup_.stop.after_time.count() > 0 ? to_ps(setup_.stop.after_time) : kNoLimit;
  if (setup_.timeline_interval.count() > 0) queue_.push({}, Phase::kSample, EventKind::kSample, 0, 0);
  first_arrival_ = arrivals_.next_root() == Arrivals::kNoMore ? Picoseconds{} : arrivals_.next_root();
  run_to_end(stop);
  if (stop != kNoLimit && (!queue_.is_empty() || arrivals_.next_root() != Arrivals::kNoMore)) {
    for (const auto& replica : replicas_) replica->catch_up(stop, true);  // up to the very moment, whatever was skipped ahead
  }
  return finish();
}

void Fleet::run_to_end(Picoseconds stop) {
  try {
    while (step(stop)) {
#ifdef KVLAB_CHECKS
      for (std::uint32_t i = 0; i < num_ranks(); ++i) state(i).check();
#endif
    }
  } catch (const ClockOverflow& e) {
    throw InputError(fmt::format("the simulated clock ends after 106 days (2^63 ps), and at {:.6g} s of simulated time {}; {}", to_s(now_),
                                 e.what(), replicas_.front()->rank(0).device->likely_cause()));
  }
}

// The next event; false when nothing is left.
bool Fleet::step(Picoseconds stop) {
  const Picoseconds root = arrivals_.next_root();
  const bool has_event = !queue_.is_empty();
  if (!has_event && root == Arrivals::kNoMore) return false;
  const bool is_root = !has_event || root < queue_.top().at || (root == queue_.top().at && queue_.top().phase >= Phase::kArrive);
  const Picoseconds at = is_root ? root : queue_.top().at;
  if (at > stop) return false;
  // Nothing changes between the event before a sample and the sample: it need not be waited for.
  if (is_root || queue_.top().kind != EventKind::kSample) clock_.reach(at);
  now_ = at;
  ++events_;
  if (is_root) {
    arrive(arrivals_.take_root(), at);
    return true;
  }
  const Event event = queue_.pop();
  if (event.kind == EventKind::kSample) return sample(at);
  if (event.kind == EventKind::kFollowUp) {
    arrive(arrivals_.take_follow_up(event.subject), at);
    return true;
  }
  Replica& replica = *replicas_[event.replica / together_];
  replica.handle(event, root);
  collect(replica, at);
  return true;
}

void Fleet::arrive(const TraceRequest& request, Picoseconds at) {
  const std::uint32_t rank = route(request, at);
  Replica& replica = *replicas_[rank / together_];
  replica.catch_up(at, false);
  replica.receive(request, rank, at);
  ++num_arrived_;
  if (!state(rank).memory().limits().prefix_caching) arrivals_.forget_hashes(request.number);
  collect(replica, at);
}

// The rank that takes the request.
std::uint32_t Fleet::route(const TraceRequest& request, Picoseconds at) {
  const std::uint32_t replica = router_ == nullptr ? 0 : choose_replica(request, at);
  if (setup_.ranks == 1) return replica;
  for (std::uint32_t first = replica * setup_.ranks; first < (replica + 1) * setup_.ranks; first += together_) {
    replicas_[first / together_]->catch_up(at, false);
    collect(*replicas_[first / together_], at);
  }
  return choose_rank(replica);
}

std::uint32_t Fleet::choose_replica(const TraceRequest& request, Picoseconds at) {
  arriving_ = &request;
  if (router_->reads_load()) {
    for (const auto& replica : replicas_) {
      replica->catch_up(at, false);
      collect(*replica, at);
    }
  }
  const std::uint32_t target = index(router_->route(arrival_record(request, to_time(at)), *this));
  if (target >= setup_.num_replicas) throw InternalError("the router chose a replica that does not exist");
  return target;
}

// As vLLM 0.19 does (vllm/v1/engine/core_client.py, DPLBAsyncMPClient): the least 4 x waiting + running, of equal ranks the first. A
// request that has just been sent to a rank counts as waiting there.
std::uint32_t Fleet::choose_rank(std::uint32_t replica) const {
  constexpr std::int64_t kWaitingWeight = 4;
  const auto score = [&](std::uint32_t rank) {
    return kWaitingWeight * state(rank).queues().num_queued() + static_cast<std::int64_t>(state(rank).running().size());
  };
  std::uint32_t best = replica * setup_.ranks;
  for (std::uint32_t rank = best + 1; rank < (replica + 1) * setup_.ranks; ++rank) {
    if (score(rank) < score(best)) best = rank;
  }
  return best;
}

ReplicaLoad Fleet::load(ReplicaId replica) const {
  ReplicaLoad load;
  for (std::uint32_t i = 0; i < setup_.ranks; ++i) {
    const ReplicaState& of = state(index(replica) * setup_.ranks + i);
    load.waiting += of.queues().num_queued();
    load.running += static_cast<std::int64_t>(of.running().size());
    load.outstanding_tokens += of.table().outstanding_prompt_tokens();
    load.used_blocks += of.used_blocks();
    load.num_blocks += of.num_blocks();
  }
  return load;
}

std::int64_t Fleet::cached_tokens(ReplicaId replica) const { return state(choose_rank(index(replica))).memory().cached_tokens(*arriving_); }

// Takes finished requests out of a replica; the turns that wait for them become arrivals.
void Fleet::collect(Replica& replica, Picoseconds at) {
  for (const auto& rank : replica.ranks()) {
    std::vector<Departure>& outbox = rank->state.outbox();
    for (const Departure& record : outbox) {
      metrics_.add(record);
      metrics_.add_qoe(record, record.qoe);
      if (record.facts != nullptr) count_in_groups(record, kNever, record.qoe);
      sink_.request(record);
      if (record.reason != nullptr && first_rejection_.empty()) first_rejection_ = record.reason;
      Picoseconds arrives;
      std::uint32_t turn = 0;
      const bool has_more = arrivals_.follow_up(record.number, at, arrives, turn);
      metrics_.add_turn(record, has_more);
      if (has_more) {
        queue_.push(arrives, Phase::kArrive, EventKind::kFollowUp, 0, turn);
      } else {
        arrivals_.session_ended(at);
      }
    }
    outbox.clear();
  }
}

void Fleet::count_in_groups(const RequestRecord& record, Time cut_off, double qoe) {
  if (record.arrival < metrics_.count_from()) return;
  const SloTarget slo = targets_of(record, metrics_.slo());
  groups_.add(record, slo.is_set && is_judged(record, slo, cut_off), has_attained(record, slo), qoe);
}

bool Fleet::sample(Picoseconds at) {
  for (std::uint32_t i = 0; i < num_ranks(); ++i) {
    if (i % together_ == 0) replicas_[i / together_]->catch_up(at, true);
    sink_.sample(sample_of(state(i), i, at, last_counted_[i]));
  }
  const bool more = arrivals_.next_root() != Arrivals::kNoMore || !queue_.is_empty();
  const Picoseconds interval = to_ps(setup_.timeline_interval);
  if (more && !add_overflows(at, interval)) queue_.push(at + interval, Phase::kSample, EventKind::kSample, 0, 0);
  return more;
}

StepTotals Fleet::totals() const {
  StepTotals all;
  for (const auto& replica : replicas_) all.merge(replica->totals());
  return all;
}

ServingSummary Fleet::finish() {
  ServingSummary summary;
  Picoseconds last;
  std::vector<RequestRecord> unfinished;
  for (const auto& replica : replicas_) {
    last = std::max(last, replica->last_output());
    for (const auto& rank : replica->ranks()) rank->state.drain(unfinished);
  }
  for (const RequestRecord& record : unfinished)
    if (record.facts != nullptr) count_in_groups(record, kStart + setup_.stop.after_time, -1);
  finish_requests(unfinished, setup_.stop, metrics_, sink_, summary);
  summary.groups = groups_.finish();
  summary.requests = arrivals_.taken();
  set_duration(first_arrival_, last, setup_.warmup, summary);
  summary.skipped = trace_.skipped();
  summary.trace_remark = trace_.remark();
  summary.first_rejection = first_rejection_;
  summary.events = events_;
  add_totals(summary, last - first_arrival_);
  return summary;
}

void Fleet::add_totals(ServingSummary& summary, Picoseconds duration) const {
  const StepTotals all = totals();
  Int128 unfinished = 0;  // steps cut short by the stop are in the totals with all of their time
  for (const auto& replica : replicas_) {
    unfinished += replica->busy_after(first_arrival_ + duration).count();
    for (const auto& rank : replica->ranks()) add_counters(rank->state, summary);
  }
  summary.steps = all.steps;
  const Int128 steps = static_cast<Int128>(all.steps);
  const Int128 rank_time = static_cast<Int128>(std::max(duration, Picoseconds{}).count()) * num_ranks();
  const std::int64_t num_blocks = state(0).num_blocks();
  summary.batch_mean_requests = ratio(all.rows, steps);
  summary.batch_mean_tokens = ratio(all.tokens, steps);
  summary.busy_frac = ratio(all.busy - unfinished, rank_time);
  summary.overload_frac = ratio(std::min(all.overload, all.busy - unfinished), rank_time);
  summary.kv_used_mean_frac = ratio(all.used_blocks, all.busy * num_blocks);
  summary.kv_used_peak_frac = ratio(all.peak_used_blocks, num_blocks);
  summary.internal_fragmentation_frac = ratio(all.wasted_tokens, all.used_blocks * setup_.memory.block_tokens);
  summary.external_fragmentation_frac = ratio(all.external_fragmentation, all.busy) * 1e-6;
}

}  // namespace kvlab
