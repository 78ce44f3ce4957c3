// Requests of a replica and their way through its queues.
#include "serving/replica_state.h"

#include "traces/block_hashes.h"

namespace kvlab {

ReplicaState::ReplicaState(const ReplicaLimits& limits, std::unique_ptr<BlockPool> pool, std::unique_ptr<Footprint> footprint)
    : limits_(limits),
      pool_(std::move(pool)),
      footprint_(std::move(footprint)),
      keeps_everything_(footprint_->keeps_everything()),
      fresh_tokens_(footprint_->fresh_tokens()) {
  limits_.prefix_caching = limits_.prefix_caching && footprint_->shares_prefixes();
  limits_.unnamed_rest = limits_.unnamed_rest || footprint_->unnamed_rest();
  if (limits_.is_contiguous) contiguous_.emplace(pool_->num_blocks() * limits_.block_tokens, ContiguousAllocator::Fit::kBest);
}

std::int32_t ReplicaState::needed_tokens(RequestId r) const {
  const Request& request = table_[r];
  if (limits_.plans_over_unknown) {
    if (request.emitted_tokens + request.in_flight_tokens >= request.output_limit) return 0;
    return request.known_tokens() - request.computed_tokens;
  }
  return request.known_values() - request.computed_tokens;
}

void ReplicaState::receive(const TraceRequest& from, std::uint64_t number, Time arrival, bool keeps_hashes) {
  if (limits_.prefix_caching) check_block_tokens(from, limits_.block_tokens);
  const RequestId id = table_.add();
  Request& r = table_[id];
  r.in_use = true;
  r.number = number;
  r.session = from.session;
  r.arrival = arrival;
  r.prompt_tokens = from.prompt_tokens;
  r.output_limit = from.output_tokens;
  r.hash_tokens = from.hash_tokens;
  r.num_hashes = limits_.prefix_caching ? static_cast<std::int32_t>(num_block_hashes(from, limits_.block_tokens)) : 0;
  r.trace_hashes = static_cast<std::int32_t>(from.hashes.size());
  r.hashes = from.hashes.data();
  if (!keeps_hashes && r.num_hashes > 0) {
    r.own_hashes.assign(from.hashes.begin(), from.hashes.end());
    r.hashes = r.own_hashes.data();
  }
  outstanding_prompt_tokens_ += r.prompt_tokens;
  const std::int64_t longest = std::int64_t{r.prompt_tokens} + r.output_limit;
  if (longest > limits_.max_model_len) return leave(id, Outcome::kRejected, "longer than max_model_len", arrival);
  if (needs_at_most(r) > num_blocks()) return leave(id, Outcome::kRejected, "larger than the KV cache", arrival);
  if (!keeps_everything_ && footprint_->exceeds_budget(r.prompt_tokens)) ++counters_.over_budget;
  input_.push_back(id);
}

// Blocks the request needs at its largest; the last emitted token is never computed.
std::int64_t ReplicaState::needs_at_most(const Request& r) const {
  const std::int32_t last = r.prompt_tokens + r.output_limit - 1;
  if (keeps_everything_) return ceil_blocks(last);
  const FootprintStep at_prompt = footprint_->step({0, r.prompt_tokens, 0, 0, false, false}, r.prompt_tokens);
  const std::int64_t end_blocks = blocks_of(footprint_->pages_at_end(r.prompt_tokens, last));
  if (at_prompt.leaves_hashed) return std::max(ceil_blocks(r.prompt_tokens) + blocks_of(at_prompt.peak_pages), end_blocks);
  if (last == r.prompt_tokens) return ceil_blocks(last) + end_blocks;
  const FootprintStep at_end = footprint_->step({last - 1, r.prompt_tokens, last - 1, 0, false, false}, 1);
  return at_end.leaves_hashed ? ceil_blocks(at_end.held_tokens + 1) + blocks_of(at_end.peak_pages) : ceil_blocks(last) + end_blocks;
}

void ReplicaState::begin_plan(Time now) {
  now_ = now;
  plan_was_quiet_ = true;
  hits_valid_ = false;
  for (const RequestId id : input_) {
    table_[id].queued = now;
    waiting_.push_back(id);
    note(RequestEvent::kQueued, table_[id], now);
  }
  input_.clear();
}

void ReplicaState::admit(RequestId id) {
  plan_was_quiet_ = false;
  remove_from_waiting(id);
  Request& r = table_[id];
  r.is_running = true;
  running_.push_back(id);
  ++running_version_;
  note(RequestEvent::kAdmitted, r, now_);
  if (r.was_admitted) return;  // what it finds now may be its own: computed before its preemption, or swapped in
  r.was_admitted = true;
  r.scheduled = now_;
  r.hit_tokens = r.computed_tokens;
  if (!limits_.prefix_caching || !is_counted(r)) return;
  counters_.lookup_tokens += r.known_values();
  counters_.hit_tokens += r.hit_tokens;
}

void ReplicaState::reject(RequestId id, const char* reason) {
  plan_was_quiet_ = false;
  remove_from_waiting(id);
  leave(id, Outcome::kRejected, reason, now_);
}

void ReplicaState::remove_from_waiting(RequestId id) {
  if (!waiting_.empty() && waiting_.front() == id) {
    waiting_.pop_front();
    return;
  }
  const auto at = std::find(waiting_.begin(), waiting_.end(), id);
  if (at == waiting_.end()) throw InternalError("request is not waiting");
  waiting_.erase(at);
}

void ReplicaState::remove_from_running(RequestId id) {
  const auto at = std::find(running_.rbegin(), running_.rend(), id);
  if (at == running_.rend()) throw InternalError("request is not running");
  running_.erase(std::next(at).base());
  ++running_version_;
}

void ReplicaState::note(RequestEvent event, const Request& r, Time at) {
  if (events != nullptr) events->push_back({limits_.replica, r.number, at, event});
}

namespace {

RequestRecord record_of(const Request& r, std::uint32_t replica, Outcome outcome, Time last_token) {
  RequestRecord record;
  record.number = r.number;
  record.replica = replica;
  record.session = r.session;
  record.arrival = r.arrival;
  record.queued = r.queued;
  record.scheduled = r.scheduled;
  record.first_token = r.first_token;
  record.last_token = last_token;
  record.prompt_tokens = r.prompt_tokens;
  record.output_tokens = outcome == Outcome::kCompleted ? r.output_limit : r.emitted_tokens;
  record.hit_tokens = r.hit_tokens;
  record.preemptions = r.preemptions;
  record.recomputed_tokens = r.recomputed_tokens;
  record.outcome = outcome;
  return record;
}

Time last_token_time(const Request& r) { return r.last_token_ps < 0 ? kNever : to_time(r.last_token_ps); }

}  // namespace

// The request is in no queue any more; its memory goes back and its record out.
void ReplicaState::leave(RequestId id, Outcome outcome, const char* reason, Time at) {
  Request& r = table_[id];
  release_memory(r);
  outstanding_prompt_tokens_ -= std::max(0, r.prompt_tokens - r.computed_tokens);
  note(outcome == Outcome::kCompleted ? RequestEvent::kFinished : RequestEvent::kRejected, r, at);
  outbox_.push_back({record_of(r, limits_.replica, outcome, last_token_time(r)), reason, id});
  table_.remove(id);
}

void ReplicaState::drain(std::vector<RequestRecord>& unfinished) const {
  for (const Request& r : table_.slots()) {
    if (r.in_use) unfinished.push_back(record_of(r, limits_.replica, Outcome::kUnfinished, last_token_time(r)));
  }
}

void ReplicaState::check() const {
  std::vector<std::uint8_t> seen(table_.slots().size(), 0);
  const auto mark = [&](RequestId id) { ++seen[index(id)]; };
  std::for_each(input_.begin(), input_.end(), mark);
  std::for_each(waiting_.begin(), waiting_.end(), mark);
  std::for_each(running_.begin(), running_.end(), mark);
  std::int64_t references = 0, pages = 0, live = 0, held = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const Request& r = table_.slots()[i];
    if (seen[i] != (r.in_use ? 1 : 0))
      throw InternalError("request " + std::to_string(r.number) + " is in " + std::to_string(seen[i]) + " states");
    if (!r.in_use) continue;
    references += static_cast<std::int64_t>(r.blocks.size());
    pages += r.pages;
    if (allocated(r) > 0) live += r.held_tokens();
    held += allocated(r);
    if (!contiguous_ && !r.left_hashed && r.is_running && ceil_blocks(r.computed_tokens) > static_cast<std::int64_t>(r.blocks.size())) {
      throw InternalError("request " + std::to_string(r.number) + " computed more tokens than it has blocks for");
    }
  }
  std::int64_t counted = 0;
  for (std::uint32_t b = 0; b < static_cast<std::uint32_t>(pool_->num_blocks()); ++b) counted += pool_->references(BlockId{b});
  if (counted != references) throw InternalError("block references are not conserved");
  if (pages != pool_->private_pages()) throw InternalError("private pages are not conserved");
  if (live != live_tokens_)
    throw InternalError("live tokens are miscounted: " + std::to_string(live) + " against " + std::to_string(live_tokens_));
  if (held != allocated_tokens_) throw InternalError("allocated tokens are miscounted");
  pool_->check();
}

}  // namespace kvlab
