#include "serving/replica_state.h"

#include <string>

#include "policies/order/fcfs.h"
#include "policies/predictor/exact.h"
#include "traces/block_hashes.h"

namespace kvlab {

namespace {

RequestRecord finished_record(const Request& r) {
  RequestRecord record = static_cast<const RequestRecord&>(r);
  if (r.has_emitted()) record.last_token = to_time(r.last_emitted);
  return record;
}

}  // namespace

RequestRecord arrival_record(const TraceRequest& request, Time arrival) {
  RequestRecord record;
  record.number = request.number;
  record.session = request.session;
  record.facts = request.facts;
  record.arrival = arrival;
  record.prompt_tokens = request.prompt_tokens;
  return record;
}

ReplicaState::ReplicaState(const ReplicaLimits& limits, std::unique_ptr<BlockPool> pool, std::unique_ptr<Footprint> footprint,
                           std::unique_ptr<Order> order, std::unique_ptr<Predictor> predictor)
    : order_(order != nullptr ? std::move(order) : std::make_unique<Fcfs>()),
      predictor_(predictor != nullptr ? std::move(predictor) : std::make_unique<ExactPredictor>()),
      needed_facts_(order_->needs()),
      order_watches_steps_(order_->watches_steps()),
      uses_predictor_(limits.scheduler_predicts || order_->uses_predictor()),
      queues_(*order_),
      memory_(limits, std::move(pool), std::move(footprint), table_),
      decodes_(table_, queues_, memory_, limits.lists_rows),
      uniform_(table_, queues_, memory_, decodes_),
      qoe_(limits.expected_text),
      images_(limits.image_tokens),
      groups_decodes_(limits.groups_decodes && memory_.needs_only_blocks() && !order_watches_steps_),
      plans_over_unknown_(limits.plans_over_unknown) {
  if (uses_predictor_) {
    for (const Fact fact : predictor_->needs()) needed_facts_.push_back(fact);
  }
  order_->attach(*this, *predictor_);
}

std::int32_t ReplicaState::needed_tokens(RequestId id) const {
  const Request& r = table_[id];
  if (!plans_over_unknown_) return r.known_values() - r.computed_tokens;
  return r.output_tokens + r.in_flight_tokens >= r.output_limit ? 0 : r.known_tokens() - r.computed_tokens;
}

// ---- from arrival to admission ----

// Throws InputError if a needed fact is missing, or hashes do not fit the blocks.
void ReplicaState::check_content(const TraceRequest& request) const {
  const ReplicaLimits& limits = memory_.limits();
  if (!needed_facts_.empty()) require_facts(request.number, request.facts, needed_facts_, "its order or predictor");
  if (limits.prefix_caching || limits.swap.keeps_turns) check_block_tokens(request, limits.block_tokens);
  if (limits.swap.keeps_turns) require_session(request);
}

void ReplicaState::receive(const TraceRequest& from, Time arrival, bool prefill_only, const std::optional<PromptStores>& stores) {
  const ReplicaLimits& limits = memory_.limits();
  check_content(from);
  const RequestId id = table_.add(from.prompt_tokens);
  Request& r = table_[id];
  static_cast<RequestRecord&>(r) = arrival_record(from, arrival);
  r.replica = limits.replica;
  r.is_counted = arrival >= limits.count_from;
  r.output_limit = from.output_tokens;
  r.hash_tokens = from.hash_tokens;
  r.num_hashes = limits.prefix_caching ? static_cast<std::int32_t>(num_block_hashes(from, limits.block_tokens)) : 0;
  r.hashes = from.hashes;
  watch(id);
  const std::int64_t longest = std::int64_t{r.prompt_tokens} + r.output_limit;
  if (longest > limits.max_model_len) return leave(id, Outcome::kRejected, arrival, "longer than max_model_len");
  if (prefill_only && r.output_limit > 1) {
    transits_.note_prefill_only(id, r.output_limit);
    r.output_limit = 1;
  }
  if (memory_.most_blocks(r) > num_blocks()) return leave(id, Outcome::kRejected, arrival, "larger than the KV cache");
  if (memory_.exceeds_budget(r.prompt_tokens)) ++counters_.over_budget;
  if (stores) transits_.add_stores(id, *stores);
  queues_.add_input(id);
}

void ReplicaState::watch(RequestId id) {
  Request& r = table_[id];
  if (const Slo* slo = memory_.limits().slo; slo != nullptr) gaps_.begin(id, r, targets_of(r, *slo));
  if (qoe_.is_on()) {
    qoe_.begin(id, r);
    if (r.has_emitted()) qoe_.add(id, r.last_emitted);
  }
  watches_tokens_ = gaps_.is_on() || qoe_.is_on();
  if (watches_tokens_) decodes_.separate();
}

void ReplicaState::begin_plan(Time now) {
  now_ = now;
  plan_was_quiet_ = true;
  plan_preempted_ = false;
  waited_ = Span{0};
  memory_.forget_hits();
  ++num_plans_;
  for (const RequestId id : queues_.input()) {
    if (Request& r = table_[id]; r.queued == kNever) r.queued = now;
    if (KvOffer* offer = transits_.offer(id); offer != nullptr) offer->first_plan = num_plans_;
  }
  queues_.input_to_waiting();
  order_->on_plan();
}

void ReplicaState::admit(RequestId id) {
  plan_was_quiet_ = false;
  queues_.waiting_to_running(id);
  order_->on_admit(id);
  Request& r = table_[id];
  r.is_running = true;
  r.is_paused = false;
  transits_.end_expectation(id);
  if (r.was_admitted) return;  // may find its own blocks
  r.was_admitted = true;
  r.scheduled = now_;
  r.hit_tokens = r.computed_tokens;
  if (!memory_.limits().prefix_caching || !r.is_counted) return;
  counters_.lookup_tokens += r.known_values();
  counters_.hit_tokens += r.hit_tokens;
}

void ReplicaState::reject(RequestId id, const char* reason) {
  plan_was_quiet_ = false;
  queues_.remove_waiting(id);
  order_->on_leave(id);
  left_.push_back(id);
  leave(id, Outcome::kRejected, now_, reason);
}

// ---- steps ----

namespace {

// One token through the layers after the prompt's, none computed before.
bool is_next_token(const Request& r, const StepEntry& entry) {
  const std::int32_t computed = r.computed_tokens;
  return entry.tokens == 1 && entry.passes_all_layers() && computed >= r.prompt_tokens && computed + 1 == r.known_tokens() &&
         computed >= r.most_computed;
}

}  // namespace

// True: a decode step of one token.
inline bool ReplicaState::commit_entry(InFlightStep& step, std::size_t place) {
  StepEntry& entry = step.entries[place];
  Request& r = table_[entry.request];
  entry.kv_before = entry.computed_before = r.computed_tokens;
  ++r.in_flight_steps;
  if (memory_.keeps_everything() && is_next_token(r, entry)) {
    entry.emits = true;
    ++step.ended_tokens;
    ++r.computed_tokens;
    ++r.in_flight_tokens;
    memory_.add_live(1);
    return entry.padded_tokens == 0;
  }
  if (!entry.ends()) return false;  // continues through later layers in later steps
  step.ended_tokens += entry.tokens;
  const std::int32_t known = r.known_tokens();
  const std::int32_t after = r.computed_tokens + entry.tokens;
  if (after > known) throw InternalError("a plan computes tokens that are not known");
  entry.emits = after == known;
  const std::int32_t held_before = r.held_tokens();
  if (!memory_.keeps_everything()) memory_.apply_policy(r, entry, place);
  const std::int32_t recomputed = std::min(after, r.most_computed) - r.computed_tokens;
  if (recomputed > 0) {
    r.recomputed_tokens += recomputed;
    if (r.is_counted) counters_.recomputed_tokens += recomputed;
  }
  counters_.prompt_tokens += std::max(0, std::min(after, r.prompt_tokens) - r.computed_tokens);
  table_.set_computed(r, after);
  memory_.add_live(r.held_tokens() - held_before);
  if (entry.emits) ++r.in_flight_tokens;
  return entry.tokens == 1 && entry.passes_all_layers() && entry.padded_tokens == 0 && entry.emits && entry.computed_before > 0 &&
         !entry.leaves_hashed && !entry.ends_prompt;
}

// Rows of the group, which do not look at their requests.
void ReplicaState::commit_rows(InFlightStep& step) {
  StepClock& clock = table_.clock();
  ++clock.planned;
  clock.valued = clock.output;
  step.ended_tokens += step.decodes.count;
  memory_.add_live(step.decodes.count);
}

void ReplicaState::commit(InFlightStep& step) {
  const bool may_group = decodes_.begin_commit() && groups_decodes_ && !watches_tokens_;
  commit_rows(step);
  if (images_.is_on()) {
    for (const StepEntry& entry : step.entries)
      if (entry.ends()) step.images += images_.take(entry.request, table_[entry.request], entry.tokens);
  }
  bool uniform = (memory_.is_steady_in_decode() || memory_.looks_ahead()) && step.idle_rows == 0 &&
                 step.num_rows() == queues_.running().size() && step.images == 0;
  for (std::size_t i = 0; i < step.entries.size(); ++i) uniform = commit_entry(step, i) && uniform;
  memory_.charge_policy(step);
  if (memory_.limits().swap.codec.is_on()) uniform = !charge_copies(step) && uniform;
  step.is_uniform = uniform;
  step.running_version = queues_.running_version();
  if (may_group) decodes_.take_in(step);
}

void ReplicaState::process_output(const InFlightStep& step, Picoseconds at, LogHistogram& itl) {
  now_ = to_time(at);
  memory_.forget_hits();
  StepClock& clock = table_.clock();
  ++clock.output;
  const Picoseconds gap = at - std::exchange(clock.last_output, at);
  if (order_watches_steps_) order_->on_step_end(step.entries, to_span(step.end - step.start));
  HistogramRun gaps(itl);
  if (step.decodes.count > 0) process_rows(step, at, gap, gaps, itl);
  for (const StepEntry& entry : step.entries) process_entry(step, entry, at, gaps);
}

// gap: since the output before, of which each row had one.
void ReplicaState::process_rows(const InFlightStep& step, Picoseconds at, Picoseconds gap, HistogramRun& gaps, LogHistogram& itl) {
  if (decodes_.has_departed()) {
    StepEntry row{};
    row.tokens = 1;
    row.emits = true;
    return decodes_.each_departed([&](RequestId id) {
      row.request = id;
      process_entry(step, row, at, gaps);
    });
  }
  if (step.decodes.counted > 0) itl.add(gap.count(), static_cast<std::uint64_t>(step.decodes.counted));
  counters_.output_tokens += step.decodes.count;
  decodes_.process_output([&](RequestId id) { finish(id); });
}

inline void ReplicaState::process_entry(const InFlightStep& step, const StepEntry& entry, Picoseconds at, HistogramRun& gaps) {
  Request& r = table_[entry.request];
  --r.in_flight_steps;
  if (step.policy_time > Picoseconds{} && r.is_running)
    (r.has_emitted() ? r.decode_policy : r.prefill_policy) += policy_shares_.take(entry.request, step);
  if (memory_.store != nullptr && entry.emits && !r.has_emitted()) store_prompt(r);
  if (!memory_.keeps_everything() && entry.ends()) memory_.end_policy_step(r, entry);
  if (!entry.emits) return;
  if (watches_tokens_) note_token(entry.request, at);
  deliver(r, at, gaps);
  if (order_watches_steps_ || !r.is_running) order_->on_tokens(entry.request, 1);
  if (r.output_tokens == r.output_limit)
    finish(entry.request);
  else if (r.is_running && !r.left_hashed)
    memory_.publish_up_to(r, r.computed_tokens - r.in_flight_tokens);
}

inline void ReplicaState::deliver(Request& r, Picoseconds at, HistogramRun& gaps) {
  --r.in_flight_tokens;
  ++r.output_tokens;
  ++counters_.output_tokens;
  if (!r.has_emitted()) {
    r.first_token = now_;
  } else if (r.is_counted) {
    gaps.add((at - r.last_emitted).count());
  }
  r.last_emitted = at;
}

void ReplicaState::emit_uniform(std::int64_t iterations, Picoseconds first_at, Picoseconds last_at, StepRing& steps, LogHistogram& itl) {
  uniform_.emit(iterations, first_at, last_at, steps, itl);
  StepClock& clock = table_.clock();
  clock.planned += iterations;
  clock.output += iterations;
  clock.valued = clock.output;
  clock.last_output = last_at;
  for (std::size_t i = 0; order_watches_steps_ && i < queues_.running().size(); ++i)
    order_->on_tokens(queues_.running()[i], static_cast<std::int32_t>(iterations));
  counters_.output_tokens += iterations * static_cast<std::int64_t>(queues_.running().size());
  now_ = to_time(last_at);
}

void ReplicaState::add_policy_time(Picoseconds time) {
  for (const RequestId id : queues_.running()) table_[id].decode_policy += time;
}

// make_way() defers an overtaking request that finds room. Running requests may have taken that room since; the next plan preempts.
Horizon ReplicaState::order_is_stable_for() const {
  if (!order_->overtaking() || queues_.running().empty()) return order_->stable_for();
  const RequestId worst = order_->victim(queues_.running().back());
  for (std::uint32_t i = 0; i < queues_.num_waiting(); ++i) {
    const Request& r = table_[queues_.waiting(i)];
    if (r.is_parked || (r.computed_tokens > 0 && !r.is_swapped && !r.is_paused)) continue;  // has its blocks
    if (order_->overtakes(queues_.waiting(i), worst)) return Horizon::none();
    break;
  }
  return order_->stable_for();
}

void ReplicaState::note_token(RequestId id, Picoseconds at) {
  Request& r = table_[id];
  if (gaps_.is_on() && r.has_emitted()) gaps_.add(id, r, at - r.last_emitted);
  if (qoe_.is_on()) qoe_.add(id, at);
}

void ReplicaState::note_uniform_tokens(Picoseconds first_at, const StretchGaps& gaps) {
  for (const RequestId id : queues_.running()) {
    Request& r = table_[id];
    if (gaps_.is_on()) gaps_.add(id, r, first_at - r.last_emitted, gaps);
    if (!qoe_.is_on()) continue;
    qoe_.add(id, first_at);
    qoe_.add(id, first_at, gaps);
  }
}

// ---- leaving ----

void ReplicaState::finish(RequestId id) {
  Request& r = table_[id];
  if (r.is_running)
    queues_.remove_running(id);
  else
    queues_.remove_waiting(id);
  if (r.is_swapped) memory_.end_swap(r);
  if (transits_.is_prefill_only(id)) return hand_over(id);
  if (uses_predictor_) predictor_->on_finish(r);
  order_->on_leave(id);
  left_.push_back(id);
  leave(id, Outcome::kCompleted, now_);
}

void ReplicaState::note(RequestEvent event, const Request& r, Time at) {
  if (events != nullptr) events->push_back({memory_.limits().replica, r.number, at, event});
}

// The request is already in no queue.
void ReplicaState::leave(RequestId id, Outcome outcome, Time at, const char* reason) {
  Request& r = table_[id];
  if (outcome == Outcome::kRejected && r.is_swapped) memory_.end_swap(r);
  transits_.end(id);
  memory_.release(r);
  if (outcome == Outcome::kCompleted && memory_.limits().swap.keeps_turns) memory_.keep_turn_copy(id);
  memory_.drop_host_copy(id);
  images_.forget(id);
  note(outcome == Outcome::kCompleted ? RequestEvent::kFinished : RequestEvent::kRejected, r, at);
  r.outcome = outcome;
  r.reason = reason;
  outbox_.push_back({finished_record(r), qoe_.is_on() && outcome == Outcome::kCompleted ? qoe_.qoe(id) : -1});
  table_.remove(id);
}

void ReplicaState::drain(std::vector<RequestRecord>& unfinished) const {
  const std::vector<Request>& slots = table_.slots();
  for (std::uint32_t i = 0; i < slots.size(); ++i)
    if (slots[i].in_use && !transits_.is_taken(RequestId{i})) unfinished.push_back(finished_record(slots[i]));
  const bool is_empty = std::none_of(slots.begin(), slots.end(), [](const Request& r) { return r.in_use; });
  if (is_empty && used_blocks() > 0)
    throw InternalError(std::to_string(used_blocks()) + " blocks are in use after the last request has left");
}

void ReplicaState::check() const {
  const std::vector<Request>& slots = table_.slots();
  std::vector<int> seen(slots.size(), 0);
  const auto mark = [&](RequestId id) { ++seen[index(id)]; };
  std::for_each(queues_.input().begin(), queues_.input().end(), mark);
  for (std::uint32_t i = 0; i < queues_.num_waiting(); ++i) mark(queues_.waiting(i));
  std::for_each(queues_.running().begin(), queues_.running().end(), mark);
  for (const auto& [slot, transit] : transits_.all())
    if (transit.export_state != Transit::Export::kNone) mark(RequestId{slot});
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const Request& r = slots[i];
    if (seen[i] != (r.in_use ? 1 : 0))
      throw InternalError("request " + std::to_string(r.number) + " is in " + std::to_string(seen[i]) + " states");
  }
  memory_.check();
}

}  // namespace kvlab
