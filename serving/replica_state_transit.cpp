// Exports, imports, and prompts with first tokens from stores.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/ceil_div.h"
#include "serving/replica_state.h"
#include "traces/block_hashes.h"

namespace kvlab {

bool ReplicaState::receive_import(const Request& from, KvOffer offer, Time at) {
  const TraceRequest content = trace_request_of(from);
  check_content(content);
  const RequestId id = table_.add(from.prompt_tokens);
  Request& r = table_[id];
  static_cast<RequestRecord&>(r) = static_cast<const RequestRecord&>(from);
  const ReplicaLimits& limits = memory_.limits();
  r.replica = limits.replica;
  r.output_limit = from.output_limit;
  r.hash_tokens = from.hash_tokens;
  r.hashes = from.hashes;
  r.num_hashes = limits.prefix_caching ? static_cast<std::int32_t>(num_block_hashes(content, limits.block_tokens)) : 0;
  r.last_emitted = from.last_emitted;
  r.was_admitted = true;
  r.left_hashed = from.left_hashed;
  r.kept_tokens = from.kept_tokens;
  r.kept_pages = from.kept_pages;
  r.row_tokens = from.row_tokens;
  r.pattern = memory_.pattern_of(offer.rows);
  r.most_computed = from.most_computed;
  watch(id);
  table_.set_computed(r, offer.tokens);
  transits_.add_offer(id, std::move(offer));
  if (memory_.is_contiguous()) throw InternalError("contiguous memory takes no KV from other replicas");
  const bool is_too_long = std::int64_t{r.prompt_tokens} + r.output_limit > limits.max_model_len;
  if (is_too_long || memory_.most_blocks(r) > num_blocks()) {
    leave(id, Outcome::kRejected, at,
          is_too_long ? "longer than the max_model_len of its decode replica" : "larger than the KV cache of its decode replica");
    return false;
  }
  if (r.computed_tokens > 0)
    memory_.await_import(r);
  else
    transits_.settle(id);  // computed again here
  queues_.add_input(id);
  return true;
}

bool ReplicaState::try_import(RequestId id, std::int32_t m, KvOffer& offer) {
  Request& r = table_[id];
  offer.has_waited = offer.has_waited || num_plans_ > offer.first_plan;
  const std::int32_t offered = r.computed_tokens;
  const std::int32_t more = offer.is_prefix ? std::max(0, memory_.find_cached_tokens(r) - offered) : 0;  // computed by others
  if (more > 0) table_.set_computed(r, offered + more);
  const std::int64_t cached = memory_.try_import(r, m - more);
  if (cached < 0) {
    if (more > 0) table_.set_computed(r, offered);
    return false;
  }
  r.is_parked = true;
  queues_.note_import(id);
  plan_was_quiet_ = false;
  const std::int64_t all = r.left_hashed ? memory_.blocks_held(r) : memory_.blocks_for(r.computed_tokens);
  swap_copies_.push_back({id, all - cached, false, 0, true});
  return true;
}

void ReplicaState::store_prompt(const Request& r) {
  SwapCopy copy;
  if (memory_.begin_write(r, copy)) store_copies_.push_back(copy);
}

void ReplicaState::hand_over(RequestId id) {
  Request& r = table_[id];
  r.output_limit = transits_.begin_export(id);
  transits_.forget_stores(id);
  r.is_running = r.is_paused = false;
  if (!memory_.holds(r)) forget_computed(id);  // preempted during its last step
  order_->on_leave(id);
  left_.push_back(id);
  note(RequestEvent::kExported, r, now_);
}

void ReplicaState::rejoin(RequestId id, Time at) {
  transits_.end_export(id);
  if (memory_.most_blocks(table_[id]) > num_blocks()) return leave(id, Outcome::kRejected, at, "larger than the KV cache");
  if (memory_.holds(table_[id]))
    queues_.add_returning(id);
  else
    queues_.add_input(id);
}

void ReplicaState::refuse_export(RequestId id, Time at, const char* reason) {
  transits_.end_export(id);
  leave(id, Outcome::kRejected, at, reason);
}

void ReplicaState::release_export(RequestId id) {
  transits_.end_export(id);
  memory_.release(table_[id]);
  memory_.drop_host_copy(id);
  images_.forget(id);
  table_.remove(id);
}

// For a waiting r with nothing computed: if stores have more of its prompt than the block cache, r takes room for all known tokens and is
// parked until the copies end. False: no room.
bool ReplicaState::take_stored(RequestId id, std::int32_t m) {
  Request& r = table_[id];
  const PromptStores* const stores = transits_.stores(id);
  if (stores == nullptr || r.left_hashed || KvMemory::holds(r)) return true;
  NodeStore& own = *memory_.store;
  const TraceRequest prompt = trace_request_of(r);
  const std::int64_t own_blocks = own.leading_blocks(prompt);
  const std::int64_t found = std::max(own_blocks, stores->other == nullptr ? 0 : stores->other->leading_blocks(prompt));
  const std::int64_t tokens = std::min<std::int64_t>(found * own.block_tokens(), memory_.most_cached_tokens(prompt));
  if (tokens == 0) return true;
  if (tokens <= memory_.lookup(id)) {
    plan_was_quiet_ = false;  // stores may have more at the next plan
    return true;
  }
  KvOffer offer;
  offer.is_prefix = true;
  offer.tokens = static_cast<std::int32_t>(tokens);
  offer.to_replica = offer.replica = stores->replica;
  offer.rank = memory_.limits().replica;
  table_.set_computed(r, offer.tokens);
  memory_.await_import(r);
  if (!try_import(id, m - offer.tokens, offer)) {
    memory_.end_swap(r);
    table_.set_computed(r, 0);
    return false;
  }
  transits_.end_expectation(id);
  const std::int64_t blocks = ceil_div(tokens, own.block_tokens());
  offer.own_blocks = own.pin(prompt, 0, std::min(blocks, own_blocks));
  if (blocks > own_blocks) {
    offer.replica = stores->other_replica;
    offer.rank = stores->other_rank;
    offer.blocks = stores->other->pin(prompt, own_blocks, blocks);
  }
  transits_.add_offer(id, std::move(offer));
  return true;
}

}  // namespace kvlab
