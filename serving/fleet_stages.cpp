// Requests between stages: they are sent to a replica, held or refused.
#include <algorithm>
#include <utility>

#include "base/checked_time.h"
#include "serving/fleet.h"
#include "traces/image_tokens.h"

namespace kvlab {

namespace {

// With nothing else under way, only a timer can release held requests; after this many, they wait forever.
constexpr std::uint32_t kMostIdleTimers = 1000;

}  // namespace

void Fleet::arrive(const TraceRequest& request, Picoseconds at) {
  if (!encoders_.is_empty() && images_of(request) > 0) return encode(request, at);
  if (dispatch_ == nullptr) {
    return receive(request, to_time(at), Placement::send(ReplicaId{0}), choose_rank(ReplicaId{0}, at), at, false);
  }
  if (dispatch_->reads_load()) catch_up_all(at);
  HeldRequests::Held asked{
      {Stage::kPrefill, arrival_record(request, to_time(at)), request, kNoReplica, dispatch_->next_key(Stage::kPrefill)}};
  if (const auto held_for = place(asked, at)) hold(asked, *held_for, at);
}

void Fleet::receive(const TraceRequest& request, Time arrival, const Placement& placement, std::uint32_t rank, Picoseconds at,
                    bool prefill_only) {
  std::optional<PromptStores> stores;
  if (setup_.store.is_on()) stores = stores_of(request, placement, rank, at);
  Replica& replica = replicas_.unit(rank);
  replica.catch_up(at, false);
  Rank& its = replica.rank(rank);
  its.receive(request, arrival, prefill_only, stores);
  replica.note_input(its, at);
  if (!keeps_hashes_) arrivals_.forget_hashes(request.number);
  collect(replica, at);
}

// The request has its first token and does not continue on its rank.
void Fleet::ask_for_decode(std::uint32_t rank, RequestId slot, Picoseconds at) {
  if (dispatch_->reads_load()) catch_up_all(at);
  const Request& r = state(rank).table()[slot];
  HeldRequests::Held asked{{Stage::kDecode, static_cast<const RequestRecord&>(r), trace_request_of(r), replicas_.replica_of(rank),
                            dispatch_->next_key(Stage::kDecode)},
                           rank,
                           slot};
  if (const auto held_for = place(asked, at)) hold(asked, *held_for, at);
}

// Returns the replica that the request is held for, if any.
std::optional<ReplicaId> Fleet::place(const HeldRequests::Held& request, Picoseconds at) {
  const Placement placement = dispatch_->ask(request.question, to_time(at));
  if (placement.kind == Placement::Kind::kHold) return placement.replica;
  if (placement.kind == Placement::Kind::kReject)
    refuse(request, placement.reason, at);
  else
    send(request, placement, at);
  return std::nullopt;
}

void Fleet::send(const HeldRequests::Held& request, const Placement& placement, Picoseconds at) {
  if (request.question.stage == Stage::kDecode) return send_on(request, placement.replica, at);
  const bool is_whole = placement.is_whole || dispatch_->roles(placement.replica).decode;
  if (request.job != HeldRequests::Held::kNoJob) return send_embeddings(request.job, placement, !is_whole, at);
  const std::uint32_t rank = choose_rank(placement.replica, at);
  receive(request.question.content, request.question.record.arrival, placement, rank, at, !is_whole);
}

void Fleet::send_on(const HeldRequests::Held& request, ReplicaId to, Picoseconds at) {
  Replica& source = replicas_.unit(request.rank);
  source.catch_up(at, false);
  collect(source, at);
  if (to == request.question.from) {
    Rank& its = source.rank(request.rank);
    its.state.rejoin(request.slot, to_time(at));
    source.note_return(its, at);
    return collect(source, at);
  }
  const std::uint32_t rank = choose_rank(to, at);
  Replica& target = replicas_.unit(rank);
  target.catch_up(at, false);
  ReplicaState& state = replicas_.state(request.rank);
  const Request& r = state.table()[request.slot];
  const auto of_tokens = static_cast<std::size_t>(state.memory().blocks_for(r.computed_tokens));
  KvOffer offer;
  offer.rank = request.rank;
  offer.replica = index(request.question.from);
  offer.to_replica = index(to);
  offer.slot = request.slot;
  offer.tokens = r.computed_tokens;
  offer.begun = to_ps(r.scheduled - kStart);
  offer.ready = r.last_emitted;
  offer.blocks.assign(r.blocks.begin(), r.blocks.begin() + static_cast<std::ptrdiff_t>(std::min(of_tokens, r.blocks.size())));
  offer.rows = state.memory().rows_of(r);
  state.transits().note_taken(request.slot);
  target.rank(rank).state.receive_import(r, std::move(offer), to_time(at));
  target.note_input(target.rank(rank), at);
  collect(target, at);
}

void Fleet::refuse(const HeldRequests::Held& request, const char* reason, Picoseconds at) {
  if (request.question.stage == Stage::kDecode) {
    Replica& source = replicas_.unit(request.rank);
    source.catch_up(at, false);
    Rank& its = source.rank(request.rank);
    its.state.refuse_export(request.slot, to_time(at), reason);
    source.note_return(its, at);
    return collect(source, at);
  }
  if (request.job != HeldRequests::Held::kNoJob) encoders_.release_embeddings(encoders_.take(request.job));
  Departure record{request.question.record};
  record.outcome = Outcome::kRejected;
  record.reason = reason;
  leave(record, at);
}

// ---- held requests ----

void Fleet::hold(const HeldRequests::Held& request, ReplicaId replica, Picoseconds at) {
  catch_up_all(at);
  // Counts steps from now on; counts that others wait for stay.
  for (std::uint32_t i = 0; held_.of(kNoReplica).empty() && i < replicas_.num_replicas(); ++i)
    if ((replica == kNoReplica || replica == ReplicaId{i}) && held_.of(ReplicaId{i}).empty()) note_outputs(ReplicaId{i});
  held_.add(replica, request);
  watch_all();
}

std::uint64_t Fleet::num_outputs(ReplicaId replica) {
  std::uint64_t outputs = 0;
  replicas_.each_unit(replica, [&](const Replica& unit) { outputs += unit.done().outputs; });
  return outputs;
}

void Fleet::note_outputs(ReplicaId replica) { outputs_seen_[index(replica)] = num_outputs(replica); }

// Every step of an awaited replica is an event.
void Fleet::watch_all() {
  const bool any = !held_.of(kNoReplica).empty();
  for (std::uint32_t i = 0; i < replicas_.num_replicas(); ++i) {
    const bool is_watched = any || !held_.of(ReplicaId{i}).empty();
    replicas_.each_unit(ReplicaId{i}, [&](Replica& unit) { unit.set_watched(is_watched); });
  }
}

// Those that wait for a replica with a new step.
void Fleet::ask_again(Picoseconds at) {
  catch_up_all(at);
  bool any_stepped = false;
  for (std::uint32_t i = 0; i < replicas_.num_replicas(); ++i) {
    const std::uint64_t outputs = num_outputs(ReplicaId{i});
    const bool has_stepped = outputs != std::exchange(outputs_seen_[i], outputs);
    any_stepped = any_stepped || has_stepped;
    if (has_stepped) ask_again(ReplicaId{i}, at);
  }
  if (any_stepped) ask_again(kNoReplica, at);
  watch_all();
  asks_pending_ = false;
}

// Those that wait for `replica`, until one is still held.
void Fleet::ask_again(ReplicaId replica, Picoseconds at) {
  while (!held_.of(replica).empty()) {
    HeldRequests::Held first = held_.take_first(replica);
    const auto held_for = place(first, at);
    if (!held_for) continue;
    if (*held_for == replica) return held_.put_back(replica, first);
    held_.add(*held_for, first);
  }
}

void Fleet::on_timer(Picoseconds at) {
  --num_clock_events_;
  asks_pending_ = true;  // all are asked here
  catch_up_all(at);
  dispatch_->on_timer(to_time(at));
  for (std::uint32_t i = 0; i < replicas_.num_replicas(); ++i) ask_again(ReplicaId{i}, at);
  ask_again(kNoReplica, at);
  watch_all();
  asks_pending_ = false;
  idle_timers_ = has_more() ? 0 : idle_timers_ + 1;
  if (!has_more() && (held_.is_empty() || idle_timers_ > kMostIdleTimers)) return;
  const Picoseconds period = to_ps(dispatch_->period());
  if (!add_overflows(at, period)) queue_clock_event(at + period, Phase::kDispatch, EventKind::kTimer);
}

// ---- replicas ----

void Fleet::catch_up(ReplicaId replica, Picoseconds at) {
  replicas_.each_unit(replica, [&](Replica& unit) {
    unit.catch_up(at, false);
    collect(unit, at);
  });
}

void Fleet::catch_up_all(Picoseconds at) {
  for (const auto& unit : replicas_.units()) {
    unit->catch_up(at, false);
    collect(*unit, at);
  }
}

std::uint32_t Fleet::choose_rank(ReplicaId replica, Picoseconds at) {
  if (replicas_.place(replica).ranks > 1) catch_up(replica, at);
  return replicas_.take_rank(replica);
}

}  // namespace kvlab
