#include "serving/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked_time.h"
#include "serving/host_summary.h"

namespace kvlab {

namespace {

constexpr Picoseconds kNoLimit = Picoseconds::max();

// Without a prefix cache, hits are absent, not 0.
void groups_have_no_cache(GroupSummary& groups) {
  for (auto* const rows : {&groups.classes, &groups.clients})
    for (GroupRow& row : *rows) row.prompt_tokens = 0;
}

std::vector<LinkSetup> links_of(const HostSetup& setup) {
  std::vector<LinkSetup> links;
  for (std::size_t i = 0; i < setup.num_pools(); ++i) links.insert(links.end(), setup.pool(i).num_replicas, setup.pool(i).link);
  for (const EncodePoolSetup& pool : setup.images.pools) links.insert(links.end(), pool.num_replicas, pool.link);
  return links;
}

}  // namespace

Fleet::Fleet(const HostSetup& setup, const MakeDevice& make_device, Clock& clock, TraceSource& trace, RunSink& sink)
    : setup_(setup),
      clock_(clock),
      trace_(trace),
      sink_(sink),
      arrivals_(trace, setup.stop),
      metrics_(setup.slo, kStart + setup.warmup),
      transfers_(setup.transfer, links_of(setup)),
      context_{setup, queue_, clock, sink, metrics_.itl(), transfers_},
      replicas_(context_, make_device),
      encoders_(setup.images, queue_, replicas_.num_ranks()),
      held_(replicas_.num_replicas()),
      sampling_(to_ps(setup.timeline_interval), replicas_.num_ranks(), setup.most_timeline_rows),
      outputs_seen_(replicas_.num_replicas()),
      stores_seen_(replicas_.num_replicas()),
      last_counted_(replicas_.num_ranks()) {
  if (replicas_.num_replicas() > 1 || !encoders_.is_empty()) dispatch_ = std::make_unique<Dispatch>(setup, replicas_, transfers_);
  for (std::uint32_t i = 0; i < replicas_.num_ranks(); ++i) {
    const ReplicaLimits& limits = state(i).memory().limits();
    keeps_hashes_ = keeps_hashes_ || limits.prefix_caching || limits.swap.keeps_turns;
  }
}

ServingSummary Fleet::run() {
  const Picoseconds stop = setup_.stop.after_time.count() > 0 ? to_ps(setup_.stop.after_time) : kNoLimit;
  if (sampling_.is_on()) queue_clock_event({}, Phase::kSample, EventKind::kSample);
  if (dispatch_ != nullptr && dispatch_->period().count() > 0)
    queue_clock_event(to_ps(dispatch_->period()), Phase::kDispatch, EventKind::kTimer);
  first_arrival_ = arrivals_.next_root() == Arrivals::kNoMore ? Picoseconds{} : arrivals_.next_root();
  run_to_end(stop);
  if (stop != kNoLimit && (!queue_.is_empty() || arrivals_.next_root() != Arrivals::kNoMore)) {
    for (const auto& replica : replicas_.units()) replica->catch_up(stop, true);  // including skipped steps
  }
  return finish();
}

void Fleet::run_to_end(Picoseconds stop) {
  try {
    while (step(stop)) {
#ifdef KVLAB_CHECKS
      for (std::uint32_t i = 0; i < replicas_.num_ranks(); ++i) state(i).check();
      check_stores();
#endif
    }
  } catch (const ClockOverflow& e) {
    throw InputError(fmt::format("the simulated clock ends after 106 days (2^63 ps), and at {:.6g} s of simulated time {}; {}", to_s(now_),
                                 e.what(), replicas_.unit(0).rank(0).device->likely_cause()));
  }
}

// False when nothing is left.
bool Fleet::step(Picoseconds stop) {
  const Picoseconds root = arrivals_.next_root();
  const bool has_event = !queue_.is_empty();
  if (!has_event && root == Arrivals::kNoMore) return false;
  const bool is_root = !has_event || root < queue_.top().at || (root == queue_.top().at && queue_.top().phase >= Phase::kArrive);
  const Picoseconds at = is_root ? root : queue_.top().at;
  if (at > stop) return false;
  // A sample does not wait: nothing changes before it.
  if (is_root || queue_.top().kind != EventKind::kSample) clock_.reach(at);
  now_ = at;
  ++events_;
  if (is_root) {
    arrive(arrivals_.take_root(), at);
    return true;
  }
  const Event event = queue_.pop();
  if (event.kind == EventKind::kSample) return sample(at);
  handle(event, root);
  return true;
}

void Fleet::handle(const Event& event, Picoseconds next_root) {
  switch (event.kind) {
    case EventKind::kFollowUp:
      return arrive(arrivals_.take_follow_up(event.subject), event.at);
    case EventKind::kAsk:
      return event.subject == index(kNoRequest) ? ask_again(event.at) : ask_for_decode(event.replica, RequestId{event.subject}, event.at);
    case EventKind::kTimer:
      return on_timer(event.at);
    case EventKind::kEncodeEnd:
      return encoders_.end_pass(event);
    case EventKind::kEncoded:
      return ask_for_prefill(event.subject, event.at);
    case EventKind::kEmbedded:
      return receive_encoded(event.subject, event.at);
    default: {
      Replica& replica = replicas_.unit(event.replica);
      replica.handle(event, next_root);
      collect(replica, event.at);
    }
  }
}

// Finished requests, and those that continue elsewhere.
void Fleet::collect(Replica& replica, Picoseconds at) {
  if (setup_.store.is_on()) note_store(replica, at);
  for (const auto& rank : replica.ranks()) {
    std::vector<Departure>& outbox = rank->state.outbox();
    for (const Departure& record : outbox) leave(record, at);
    outbox.clear();
    Transits& transits = rank->state.transits();
    if (transits.is_quiet()) continue;
    const std::uint32_t number = rank->state.memory().limits().replica;
    for (const RequestId slot : transits.fresh()) queue_.push(at, Phase::kDispatch, EventKind::kAsk, number, index(slot));
    transits.fresh().clear();
    settle_offers(rank->state, at);
  }
  if (!held_.is_empty() && !asks_pending_) {
    asks_pending_ = true;
    queue_.push(at, Phase::kDispatch, EventKind::kAsk, 0, index(kNoRequest));
  }
}

// Turns that wait for the request become arrivals.
void Fleet::leave(const Departure& record, Picoseconds at) {
  metrics_.add(record);
  if (dispatch_ != nullptr) dispatch_->on_leave(record);
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
  if (arrivals_.idle_cap().count() > 0 && arrivals_.in_progress() == 0) cut_idle_time(at);
}

// After the last request has left: all coming arrivals move earlier if the first is later than the cap (AIPerf's
// --system-idle-gap-cap-seconds, src/aiperf/timing/strategies/agentic_replay.py of ai-dynamo/aiperf).
void Fleet::cut_idle_time(Picoseconds at) {
  const Picoseconds next = std::min(arrivals_.next_start(), queue_.first_of(EventKind::kFollowUp));
  if (next == Arrivals::kNoMore || next - at <= arrivals_.idle_cap()) return;
  const Picoseconds by = next - at - arrivals_.idle_cap();
  arrivals_.advance(by);
  queue_.advance(EventKind::kFollowUp, by);
  ++num_idle_cuts_;
  idle_cut_ = idle_cut_ + by;
}

std::string Fleet::skipped() const {
  std::string all = trace_.skipped();
  if (num_idle_cuts_ > 0)
    all += fmt::format("{}{} pauses with no request in progress cut to {:g} s, by {:.6g} s in all", all.empty() ? "" : "; ", num_idle_cuts_,
                       to_s(arrivals_.idle_cap()), to_s(idle_cut_));
  return all;
}

// Frees memory of KV that was fetched or is not needed.
void Fleet::settle_offers(ReplicaState& state, Picoseconds at) {
  std::vector<KvOffer> settled;
  std::swap(settled, state.transits().settled());
  for (const KvOffer& offer : settled) {
    if (offer.is_prefix) {
      give_back(offer);
      continue;
    }
    Replica& source = replicas_.unit(offer.rank);
    source.catch_up(at, false);
    Rank& rank = source.rank(offer.rank);
    rank.state.release_export(offer.slot);
    source.note_return(rank, at);
    collect(source, at);
  }
}

void Fleet::count_in_groups(const RequestRecord& record, Time cut_off, double qoe) {
  if (record.arrival < metrics_.count_from()) return;
  const SloTarget slo = targets_of(record, metrics_.slo());
  groups_.add(record, slo.is_set && is_judged(record, slo, cut_off), has_attained(record, slo), qoe);
}

void Fleet::queue_clock_event(Picoseconds at, Phase phase, EventKind kind) {
  queue_.push(at, phase, kind, 0, 0);
  ++num_clock_events_;
}

bool Fleet::sample(Picoseconds at) {
  --num_clock_events_;
  for (std::uint32_t i = 0; i < replicas_.num_ranks(); ++i) {
    if (replicas_.unit(i).first_rank() == i) replicas_.unit(i).catch_up(at, true);
    sink_.sample(sample_of(state(i), i, at, last_counted_[i]));
  }
  const bool more = has_more();
  sampling_.note(at);
  const Picoseconds interval = sampling_.interval();
  if (more && !add_overflows(at, interval)) queue_clock_event(at + interval, Phase::kSample, EventKind::kSample);
  return more;
}

StepTotals Fleet::totals() const {
  StepTotals all;
  for (const auto& replica : replicas_.units()) all.merge(replica->done().totals);
  return all;
}

StepTotals Fleet::totals(std::uint32_t pool) const {
  StepTotals all;
  for (const auto& replica : replicas_.units())
    if (replicas_.place(replicas_.replica_of(replica->first_rank())).pool == pool) all.merge(replica->done().totals);
  return all;
}

ServingSummary Fleet::finish() {
  ServingSummary summary;
  Picoseconds last;
  std::vector<RequestRecord> unfinished;
  for (const auto& replica : replicas_.units()) {
    last = std::max(last, replica->done().last_output);
    for (const auto& rank : replica->ranks()) rank->state.drain(unfinished);
  }
  encoders_.drain(unfinished);
  for (const auto& list : held_.lists())
    for (const HeldRequests::Held& held : list)
      if (held.question.stage == Stage::kPrefill) unfinished.push_back(held.question.record);
  for (const RequestRecord& record : unfinished)
    if (record.facts != nullptr) count_in_groups(record, kStart + setup_.stop.after_time, -1);
  if (!held_.is_empty() && setup_.stop.after_time.count() == 0)
    throw InputError(
        fmt::format("{} requests wait forever: the dispatcher holds them and no replica makes a step; choose 'dispatcher: "
                    "least_outstanding', or give the pools more 'replicas' or 'memory'",
                    held_.size()));
  finish_requests(unfinished, setup_.stop, metrics_, sink_, summary);
  summary.groups = groups_.finish();
  summary.requests = arrivals_.taken();
  set_duration(first_arrival_, last, setup_.warmup, summary);
  summary.skipped = skipped();
  summary.trace_remark = trace_.remark();
  summary.timeline_remark = sampling_.remark(last);
  summary.first_rejection = first_rejection_;
  summary.events = events_;
  add_totals(summary, last - first_arrival_);
  if (summary.lookup_tokens == 0) groups_have_no_cache(summary.groups);
  if (!setup_.pools.empty()) add_pools(summary);
  return summary;
}

void Fleet::add_totals(ServingSummary& summary, Picoseconds duration) const {
  const StepTotals all = totals();
  Int128 unfinished = 0;  // totals contain steps cut by the stop with their whole time
  for (const auto& replica : replicas_.units()) {
    unfinished += replica->busy_after(first_arrival_ + duration).count();
    for (const auto& rank : replica->ranks()) add_counters(rank->state, summary);
  }
  summary.steps = all.steps;
  const Int128 steps = static_cast<Int128>(all.steps);
  const Int128 rank_time = static_cast<Int128>(std::max(duration, Picoseconds{}).count()) * replicas_.num_ranks();
  Int128 block_time = 0;
  for (std::uint32_t i = 0; i < setup_.num_pools(); ++i) {
    const StepTotals own = totals(i);
    const std::int64_t num_blocks = setup_.pools.empty() ? state(0).num_blocks() : setup_.pools[i].memory.num_blocks;
    block_time += own.busy * num_blocks;
    summary.kv_used_peak_frac = std::max(summary.kv_used_peak_frac, ratio(own.peak_used_blocks, num_blocks));
  }
  summary.batch_mean_requests = ratio(all.rows, steps);
  summary.batch_mean_tokens = ratio(all.tokens, steps);
  summary.busy_frac = ratio(all.busy - unfinished, rank_time);
  summary.overload_frac = ratio(std::min(all.overload, all.busy - unfinished), rank_time);
  summary.kv_used_mean_frac = ratio(all.used_blocks, block_time);
  summary.internal_fragmentation_frac = ratio(all.wasted_tokens, all.used_blocks * setup_.pool(0).memory.block_tokens);
  summary.external_fragmentation_frac = ratio(all.external_fragmentation, all.busy) * 1e-6;
}

void Fleet::add_pools(ServingSummary& summary) const {
  for (std::uint32_t i = 0; i < setup_.num_pools(); ++i) {
    const StepTotals own = totals(i);
    const std::int64_t num_blocks = setup_.pools[i].memory.num_blocks;
    PoolTotals pool;
    pool.busy = own.busy;
    pool.steps = own.steps;
    pool.images = own.images;
    pool.kv_used_mean_frac = ratio(own.used_blocks, own.busy * num_blocks);
    pool.kv_used_peak_frac = ratio(own.peak_used_blocks, num_blocks);
    for (std::uint32_t rank = 0; rank < replicas_.num_ranks(); ++rank)
      if (replicas_.place(replicas_.replica_of(rank)).pool == i) pool.output_tokens += state(rank).counters().output_tokens;
    summary.pools.push_back(pool);
  }
  summary.encode_pools = encoders_.totals();
  for (std::uint32_t replica = 0; replica < replicas_.num_replicas() + encoders_.size(); ++replica) {
    for (const bool is_egress : {true, false}) {
      const Transfers::Use& use = is_egress ? transfers_.egress(replica) : transfers_.ingress(replica);
      if (use.transfers > 0) summary.links.push_back({replica, is_egress, use.transfers, use.bytes, use.busy});
    }
  }
  add_stores(summary);
}

}  // namespace kvlab
