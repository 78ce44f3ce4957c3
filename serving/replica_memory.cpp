// Memory side of a replica's view: lookups, allocation, preemption, swap.
#include <algorithm>
#include <array>

#include "serving/replica_state.h"
#include "traces/block_hashes.h"

namespace kvlab {

std::int64_t ReplicaState::num_blocks() const { return contiguous_ ? contiguous_->capacity() / limits_.block_tokens : pool_->num_blocks(); }

std::int64_t ReplicaState::free_blocks() const {
  return contiguous_ ? contiguous_->free_tokens() / limits_.block_tokens : pool_->free_blocks();
}

std::int64_t ReplicaState::blocks_for(RequestId /*r*/, std::int32_t n) const { return ceil_blocks(n); }

SeqState ReplicaState::seq_of(const Request& r, std::int32_t computed) const {
  const bool is_named = r.num_hashes > 0;  // 0 without prefix caching
  if (!r.left_hashed) return {computed, r.prompt_tokens, computed, 0, false, false, is_named};
  return {computed, r.prompt_tokens, r.row_tokens, r.pattern, true, computed < r.most_computed, is_named};
}

std::uint64_t ReplicaState::key_of(const Request& r, std::int32_t block) const {
  return block_hash(r.hash_tokens, std::span(r.hashes, static_cast<std::size_t>(r.trace_hashes)), limits_.block_tokens,
                    static_cast<std::uint32_t>(block));
}

std::int64_t ReplicaState::peak_blocks(RequestId r) const {
  const Request& request = table_[r];
  const std::int32_t n = request.known_tokens();
  if (keeps_everything_) return ceil_blocks(n);
  return ceil_blocks(n) + blocks_of(footprint_->step({0, n, 0, 0, false, false}, n).peak_pages);
}

// The last known token is always computed, since its logits are needed (card 1.4c), and what the policy observes of the prompt's last ones.
std::int32_t ReplicaState::most_hits(std::int32_t known_tokens, std::int32_t prompt_tokens) const {
  const std::int32_t most = fresh_tokens_ <= 1 ? known_tokens - 1 : std::min(known_tokens - 1, prompt_tokens - fresh_tokens_);
  return std::max(0, most) / limits_.block_tokens;
}

void ReplicaState::find_hits(const Request& r) {
  hits_.clear();
  const std::int32_t most = most_hits(r.known_tokens(), r.prompt_tokens);
  const std::int32_t named = std::min(r.num_hashes, most);
  for (std::int32_t i = 0; i < named; ++i) {
    const std::uint64_t key = key_of(r, i);
    const BlockId block = pool_->find(key);
    if (block == kNoBlock) return;
    hits_.push_back(block);
  }
  for (const auto& [block, takes] : r.left_behind) {
    if (std::ssize(hits_) >= most || pool_->takes(block) != takes) return;
    hits_.push_back(block);
  }
}

std::int32_t ReplicaState::lookup(RequestId r) {
  const Request& request = table_[r];
  if (!limits_.prefix_caching || (request.num_hashes == 0 && request.left_behind.empty()) || !starts_fresh(request)) return 0;
  if (!(hits_valid_ && hits_for_ == r)) {
    find_hits(request);
    hits_for_ = r;
    hits_valid_ = true;
  }
  return static_cast<std::int32_t>(hits_.size()) * limits_.block_tokens;
}

ReplicaState::Need ReplicaState::need(RequestId r, std::int32_t m, std::int32_t ahead) {
  const Request& request = table_[r];
  Need all;
  std::int32_t computed = request.computed_tokens;
  std::int64_t owned = static_cast<std::int64_t>(request.blocks.size());
  if (starts_fresh(request)) {
    computed = lookup(r);
    if (computed > 0) {
      owned += static_cast<std::int64_t>(hits_.size());
      for (const BlockId hit : hits_) all.free_hits += pool_->is_referenced(hit) ? 0 : 1;
    }
  }
  if (!keeps_everything_) {
    const FootprintStep step = footprint_->step(seq_of(request, computed), m);
    all.pages = std::max<std::int64_t>(0, step.peak_pages - request.pages);
    // Of a sequence that is rewritten where it is stored, blocks hold what it keeps until the output is processed.
    const bool in_blocks = request.left_hashed && !request.blocks.empty() && request.kept_pages > request.pages;
    if (in_blocks) all.pages = std::max<std::int64_t>(0, all.pages - owned * pool_->pages_per_block());
    if (request.left_hashed) return all;
  }
  all.blocks = std::max<std::int64_t>(0, ceil_blocks(computed + m + ahead) - owned);
  return all;
}

std::int64_t ReplicaState::blocks_needed(RequestId r, std::int32_t m) {
  const Need all = need(r, m);
  const std::int64_t for_pages = all.pages > 0 ? pool_->free_blocks() - pool_->free_after_pages(all.pages) : 0;
  return all.blocks + all.free_hits + for_pages;
}

bool ReplicaState::try_allocate(RequestId r, std::int32_t m, std::int32_t ahead) {
  Request& request = table_[r];
  if (contiguous_) return request.reserved_start >= 0 && request.computed_tokens + m <= request.reserved_tokens;
  const std::int64_t before = allocated(request);
  const Need all = need(r, m, ahead);
  const std::int64_t left = (all.pages > 0 ? pool_->free_after_pages(all.pages) : pool_->free_blocks()) - all.free_hits;
  if (all.blocks > left) return false;
  if (starts_fresh(request) && limits_.prefix_caching) {
    const std::int32_t hit_tokens = lookup(r);
    if (lookup_log != nullptr && !request.was_admitted) log_uses(request);
    for (std::size_t i = 0; hit_tokens > 0 && i < hits_.size(); ++i) {
      pool_->note_hit(hits_[i]);
      pool_->acquire(hits_[i]);
      request.blocks.push_back(hits_[i]);
    }
    request.published = static_cast<std::int32_t>(request.blocks.size());
    request.left_behind.clear();
    set_computed(request, hit_tokens);
    live_tokens_ += hit_tokens;
  }
  hits_valid_ = false;
  if (all.pages > 0) {
    pool_->take_pages(all.pages);
    request.pages += all.pages;
  }
  pool_->take(all.blocks, request.blocks);
  allocated_tokens_ += allocated(request) - before;
  if (!request.left_hashed) publish_up_to(request, std::min(request.computed_tokens + m, request.known_values()));
  return true;
}

// Every block that the request will find or publish, once, whatever is cached and however often it is preempted: so a run with
// another cache has the same uses of each key.
void ReplicaState::log_uses(const Request& r) {
  const std::int32_t full = (r.prompt_tokens + r.output_limit - 1) / limits_.block_tokens;
  for (std::int32_t i = 0; i < std::min(r.num_hashes, full); ++i) lookup_log->push_back(key_of(r, i));
}

// Card 1.4c: full blocks are published when they are allocated, up to tokens that have values.
void ReplicaState::publish_up_to(Request& r, std::int32_t tokens) {
  if (!limits_.prefix_caching) return;
  r.publishable_tokens = std::max(r.publishable_tokens, tokens);
  const std::int32_t full = std::min(tokens / limits_.block_tokens, r.num_hashes);
  std::array<std::uint64_t, 32> keys;  // their slots are asked for together
  while (r.published < full) {
    const std::int32_t first = r.published, end = std::min(full, first + static_cast<std::int32_t>(keys.size()));
    for (std::int32_t i = first; i < end; ++i) {
      keys[static_cast<std::size_t>(i - first)] = key_of(r, i);
      pool_->prefetch(keys[static_cast<std::size_t>(i - first)]);
    }
    for (; r.published < end; ++r.published) {
      const double cost_s = recompute_seconds ? recompute_seconds(limits_.block_tokens, r.published * limits_.block_tokens) : 0;
      const auto depth = static_cast<std::uint32_t>(r.published);
      pool_->publish(r.blocks[depth], keys[static_cast<std::size_t>(r.published - first)], depth, cost_s);
    }
  }
}

bool ReplicaState::try_reserve(RequestId r, std::int32_t tokens) {
  Request& request = table_[r];
  if (!contiguous_) throw InternalError("try_reserve on paged memory");
  const std::int64_t start = contiguous_->reserve(tokens);
  if (start < 0) return false;
  request.reserved_start = start;
  request.reserved_tokens = tokens;
  allocated_tokens_ += tokens;
  return true;
}

void ReplicaState::release_blocks(Request& r) {
  // Card 1.4d: deepest block first, so that it is evicted first.
  pool_->release_reversed(r.blocks);
  r.blocks.clear();
  r.published = r.publishable_tokens = 0;
}

void ReplicaState::release_memory(Request& r) {
  hits_valid_ = false;
  if (allocated(r) > 0) live_tokens_ -= r.held_tokens();
  allocated_tokens_ -= allocated(r);
  if (r.reserved_start >= 0) {
    contiguous_->release(r.reserved_start, r.reserved_tokens);
    r.reserved_start = -1;
    r.reserved_tokens = 0;
  }
  release_blocks(r);
  if (r.pages > 0) pool_->return_pages(r.pages);
  r.pages = 0;
}

// What would have been published if it had names.
void ReplicaState::remember_blocks(Request& r) {
  if (limits_.unnamed_rest && r.num_hashes == 0) return;
  const auto full = static_cast<std::size_t>(r.publishable_tokens / limits_.block_tokens);
  for (auto i = static_cast<std::size_t>(r.num_hashes); i < std::min(full, r.blocks.size()); ++i)
    r.left_behind.emplace_back(r.blocks[i], pool_->takes(r.blocks[i]));
}

bool ReplicaState::swap_out(RequestId id, Request& r) {
  const std::int64_t held = static_cast<std::int64_t>(r.blocks.size()) + blocks_of(r.pages);
  if (held == 0 || host_used_ + held > limits_.host_blocks) return false;
  host_used_ += held;
  r.swapped_blocks = held;
  r.is_swapped = true;
  ++num_swapped_;
  counters_.swaps += is_counted(r) ? 1 : 0;
  swap_copies_.push_back({id, held, true});
  note(RequestEvent::kSwappedOut, r, now_);
  return true;
}

void ReplicaState::preempt(RequestId id, Preemption mode, QueueEnd end) {
  Request& r = table_[id];
  if (!r.is_running) throw InternalError("preempting a request that does not run");
  plan_was_quiet_ = false;
  counters_.preemptions += is_counted(r) ? 1 : 0;
  ++r.preemptions;
  note(RequestEvent::kPreempted, r, now_);
  if (r.left_hashed) mode = footprint_->on_preempt() == Footprint::OnPreempt::kSwap ? Preemption::kSwap : Preemption::kRecompute;
  const bool swapped = mode == Preemption::kSwap && swap_out(id, r);
  if (mode == Preemption::kSwap && !swapped && is_counted(r)) ++counters_.recompute_fallbacks;
  remove_from_running(id);
  if (!swapped && !r.left_hashed && limits_.prefix_caching && pool_->remembers_blank()) remember_blocks(r);
  release_memory(r);
  r.is_running = false;
  if (!swapped) {
    r.most_computed = std::max(r.most_computed, r.computed_tokens);
    set_computed(r, 0);
    r.kept_tokens = r.row_tokens = r.pattern = 0;
  }
  if (end == QueueEnd::kFront)
    waiting_.push_front(id);
  else
    waiting_.push_back(id);
}

bool ReplicaState::try_swap_in(RequestId id, std::int32_t m) {
  Request& r = table_[id];
  if (!r.is_swapped || r.is_parked) throw InternalError("swapping in a request that is not swapped out");
  hits_valid_ = false;
  const std::int64_t pages = keeps_everything_ ? 0 : footprint_->step(seq_of(r, r.computed_tokens), m).peak_pages;
  const std::int64_t blocks = r.left_hashed ? 0 : ceil_blocks(r.computed_tokens + m);
  if (blocks > (pages > 0 ? pool_->free_after_pages(pages) : pool_->free_blocks())) return false;
  if (pages > 0) pool_->take_pages(pages);
  r.pages = pages;
  if (!r.left_hashed) {
    pool_->take(blocks, r.blocks);
    r.published = static_cast<std::int32_t>(blocks);  // copies come back without hashes
  }
  live_tokens_ += r.held_tokens();
  allocated_tokens_ += allocated(r);
  r.is_parked = true;
  plan_was_quiet_ = false;
  swap_copies_.push_back({id, r.swapped_blocks, false});
  return true;
}

void ReplicaState::finish_swap_in(RequestId id, Time at) {
  Request& r = table_[id];
  r.is_parked = false;
  r.is_swapped = false;
  host_used_ -= r.swapped_blocks;
  r.swapped_blocks = 0;
  --num_swapped_;
  note(RequestEvent::kSwappedIn, r, at);
}

std::int32_t ReplicaState::cached_tokens(const TraceRequest& request) const {
  if (!limits_.prefix_caching) return 0;
  const std::uint32_t known = num_block_hashes(request, limits_.block_tokens);
  const std::uint32_t most = std::min(known, static_cast<std::uint32_t>(most_hits(request.prompt_tokens, request.prompt_tokens)));
  std::uint32_t hits = 0;
  while (hits < most && pool_->peek(block_hash(request.hash_tokens, request.hashes, limits_.block_tokens, hits)) != kNoBlock) ++hits;
  return static_cast<std::int32_t>(hits) * limits_.block_tokens;
}

std::int64_t ReplicaState::external_fragmentation_ppm() const {
  if (!contiguous_ || contiguous_->free_tokens() == 0) return 0;
  return 1'000'000 - contiguous_->largest_hole() * 1'000'000 / contiguous_->free_tokens();
}

}  // namespace kvlab
