#include "serving/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked_time.h"

namespace kvlab {

namespace {

constexpr Picoseconds kNoLimit = Picoseconds::max();

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

}  // namespace kvlab
