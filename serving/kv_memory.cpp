#include "serving/kv_memory.h"

#include <string>

#include "base/error.h"

namespace kvlab {

namespace {

bool starts_fresh(const Request& r) { return !r.is_running && r.computed_tokens == 0 && r.blocks.empty() && !r.left_hashed; }

}  // namespace

KvMemory::KvMemory(const ReplicaLimits& limits, std::unique_ptr<BlockPool> pool, std::unique_ptr<Footprint> footprint, SlotTable& table)
    : limits_(limits),
      pool_(std::move(pool)),
      footprint_(std::move(footprint)),
      table_(table),
      keeps_everything_(footprint_->keeps_everything()),
      returns_pages_(footprint_->returns_pages()),
      copies_beside_steps_(keeps_everything_ && limits_.swap.overlap != SwapSetup::Overlap::kNone),
      looks_ahead_(!footprint_->is_steady_in_decode() && footprint_->looks_ahead()),
      fresh_tokens_(footprint_->fresh_tokens()) {
  limits_.prefix_caching = limits_.prefix_caching && footprint_->shares_prefixes();
  limits_.unnamed_rest = limits_.unnamed_rest || footprint_->unnamed_rest();
  if (limits_.is_contiguous) contiguous_.emplace(pool_->num_blocks() * limits_.block_tokens, ContiguousAllocator::Fit::kBest);
  needs_only_blocks_ = keeps_everything_ && !contiguous_;
}

std::int64_t KvMemory::num_blocks() const { return contiguous_ ? contiguous_->capacity() / limits_.block_tokens : pool_->num_blocks(); }

std::int64_t KvMemory::free_blocks() const {
  return contiguous_ ? contiguous_->free_tokens() / limits_.block_tokens : pool_->free_blocks();
}

SeqState KvMemory::seq_of(const Request& r, std::int32_t computed, std::int32_t new_tokens) const {
  const bool is_named = r.num_hashes > 0;  // false without prefix caching
  if (!r.left_hashed) return {computed, r.prompt_tokens, computed, 0, false, false, is_named, new_tokens};
  return {computed, r.prompt_tokens, r.row_tokens, r.pattern, true, computed < r.most_computed, is_named, new_tokens};
}

BlockHashes KvMemory::keys_from(const Request& r, std::int32_t first) const {
  return {r.hash_tokens, r.hashes, limits_.block_tokens, static_cast<std::uint32_t>(first)};
}

std::int64_t KvMemory::peak_blocks(const Request& r) const {
  const std::int32_t n = r.known_tokens();
  if (keeps_everything_) return blocks_for(n);
  return blocks_for(n) + blocks_of_pages(footprint_->step(SeqState{0, n}.taking(n)).peak_pages);
}

std::int64_t KvMemory::most_blocks(const Request& r) const {
  const std::int32_t last = r.prompt_tokens + r.output_limit - 1;
  if (keeps_everything_) return blocks_for(last);
  const FootprintStep at_prompt = footprint_->step(SeqState{0, r.prompt_tokens}.taking(r.prompt_tokens));
  const std::int64_t end_blocks = blocks_of_pages(footprint_->pages_at_end(r.prompt_tokens, last));
  if (at_prompt.leaves_hashed) return std::max(blocks_for(r.prompt_tokens) + blocks_of_pages(at_prompt.peak_pages), end_blocks);
  if (last == r.prompt_tokens) return blocks_for(last) + end_blocks;
  const FootprintStep at_end = footprint_->step(SeqState{last - 1, r.prompt_tokens, last - 1}.taking(1));
  return at_end.leaves_hashed ? blocks_for(at_end.held_tokens + 1) + blocks_of_pages(at_end.peak_pages) : blocks_for(last) + end_blocks;
}

// Always computed: the last known token, for its logits, and the prompt's last tokens that the policy observes.
std::int32_t KvMemory::most_hits(std::int32_t known_tokens, std::int32_t prompt_tokens) const {
  const std::int32_t most = fresh_tokens_ <= 1 ? known_tokens - 1 : std::min(known_tokens - 1, prompt_tokens - fresh_tokens_);
  return std::max(0, most) / limits_.block_tokens;
}

void KvMemory::find_hits(const Request& r) {
  hits_.clear();
  const std::int32_t most = most_hits(r.known_tokens(), r.prompt_tokens);
  const std::int32_t named = std::min(r.num_hashes, most);
  BlockHashes keys = keys_from(r, 0);
  for (std::int32_t i = 0; i < named; ++i) {
    const BlockId block = pool_->find(keys.next());
    if (block == kNoBlock) return;
    hits_.push_back(block);
  }
  for (const auto& [block, takes] : r.left_behind) {
    if (std::ssize(hits_) >= most || pool_->takes(block) != takes) return;
    hits_.push_back(block);
  }
}

std::int32_t KvMemory::lookup(RequestId id) {
  const Request& r = table_[id];
  if (!limits_.prefix_caching || (r.num_hashes == 0 && r.left_behind.empty()) || !starts_fresh(r)) return 0;
  if (!(hits_valid_ && hits_for_ == id)) {
    find_hits(r);
    hits_for_ = id;
    hits_valid_ = true;
  }
  return static_cast<std::int32_t>(hits_.size()) * limits_.block_tokens;
}

std::int32_t KvMemory::most_cached_tokens(const TraceRequest& request) const {
  return limits_.prefix_caching ? most_hits(request.prompt_tokens, request.prompt_tokens) * limits_.block_tokens : 0;
}

std::int32_t KvMemory::cached_tokens(const TraceRequest& request) const {
  if (!limits_.prefix_caching) return 0;
  const std::uint32_t known = num_block_hashes(request, limits_.block_tokens);
  const std::uint32_t most = std::min(known, static_cast<std::uint32_t>(most_hits(request.prompt_tokens, request.prompt_tokens)));
  std::uint32_t hits = 0;
  while (hits < most && pool_->peek(block_hash(request.hash_tokens, request.hashes, limits_.block_tokens, hits)) != kNoBlock) ++hits;
  return static_cast<std::int32_t>(hits) * limits_.block_tokens;
}

KvMemory::Need KvMemory::need(RequestId id, std::int32_t m, std::int32_t ahead) {
  const Request& r = table_[id];
  Need all;
  std::int32_t computed = r.computed_tokens;
  std::int64_t owned = static_cast<std::int64_t>(r.blocks.size());
  if (starts_fresh(r)) {
    computed = lookup(id);
    if (computed > 0) {
      owned += static_cast<std::int64_t>(hits_.size());
      for (const BlockId hit : hits_) all.free_hits += pool_->is_referenced(hit) ? 0 : 1;
    }
  }
  if (!keeps_everything_) {
    const FootprintStep* const known = known_step(id, r, m);
    const FootprintStep step = known != nullptr ? *known : footprint_->step(seq_of(r, computed, m));
    all.pages = std::max<std::int64_t>(0, step.peak_pages - r.pages);
    if (returns_pages_) all.surplus = std::max<std::int64_t>(0, r.pages - step.peak_pages);
    // A sequence rewritten in place keeps its blocks until the output is processed.
    const bool in_blocks = r.left_hashed && !r.blocks.empty() && r.kept_pages > r.pages;
    if (in_blocks) all.pages = std::max<std::int64_t>(0, all.pages - owned * pool_->pages_per_block());
    if (r.left_hashed) return all;
  }
  all.blocks = std::max<std::int64_t>(0, blocks_for(computed + m + ahead) - owned);
  return all;
}

std::int64_t KvMemory::blocks_needed(RequestId id, std::int32_t m) {
  const Need all = need(id, m, 0);
  return all.blocks + all.free_hits + pool_->free_blocks() - free_after_pages(all.pages);
}

bool KvMemory::allocate_more(RequestId id, std::int32_t m, std::int32_t ahead, bool publishes) {
  Request& r = table_[id];
  if (contiguous_) return r.reserved_start >= 0 && r.computed_tokens + m <= r.reserved_tokens;
  const std::int64_t before = allocated(r);
  const Need all = need(id, m, ahead);
  if (all.surplus > 0) {
    pool_->return_pages(all.surplus);
    r.pages -= all.surplus;
  }
  if (all.blocks > free_after_pages(all.pages) - all.free_hits) return false;
  if (starts_fresh(r) && limits_.prefix_caching) take_hits(id, r);
  hits_valid_ = false;
  if (all.pages > 0) {
    pool_->take_pages(all.pages);
    r.pages += all.pages;
  }
  pool_->take(all.blocks, r.blocks);
  if (copies_beside_steps()) taken_.insert(taken_.end(), r.blocks.end() - all.blocks, r.blocks.end());
  allocated_tokens_ += allocated(r) - before;
  if (publishes && !r.left_hashed) publish_up_to(r, std::min(r.computed_tokens + m, r.known_values()));
  return true;
}

void KvMemory::take_hits(RequestId id, Request& r) {
  const std::int32_t hit_tokens = lookup(id);
  if (lookup_log != nullptr && !r.was_admitted) log_uses(r);
  for (std::size_t i = 0; hit_tokens > 0 && i < hits_.size(); ++i) {
    pool_->note_hit(hits_[i]);
    pool_->acquire(hits_[i]);
    r.blocks.push_back(hits_[i]);
  }
  r.published = static_cast<std::int32_t>(r.blocks.size());
  r.left_behind.clear();
  table_.set_computed(r, hit_tokens);
  live_tokens_ += hit_tokens;
}

void KvMemory::take_block(Request& r) {
  pool_->take_one(r.blocks);
  allocated_tokens_ += limits_.block_tokens;
}

// Every block that the request will find or publish, once, regardless of preemptions: runs with other caches log the same uses.
void KvMemory::log_uses(const Request& r) {
  const std::int32_t full = (r.prompt_tokens + r.output_limit - 1) / limits_.block_tokens;
  BlockHashes keys = keys_from(r, 0);
  for (std::int32_t i = 0; i < std::min(r.num_hashes, full); ++i) lookup_log->push_back(keys.next());
}

// At allocation, up to tokens that have values.
void KvMemory::publish_blocks(Request& r, std::int32_t tokens) {
  const auto full = static_cast<std::uint32_t>(std::min(tokens / limits_.block_tokens, r.num_hashes));
  auto depth = static_cast<std::uint32_t>(r.published);
  BlockHashes keys = keys_from(r, r.published);
  const std::uint32_t most = recompute_seconds ? 1 : full;  // a cost is of one block
  KeyRun next = keys.next_run(std::min(most, full - depth));
  while (next.count > 0) {
    const KeyRun run = next;
    const std::uint32_t left = full - depth - run.count;
    next = left == 0 ? KeyRun{} : keys.next_run(std::min(most, left));
    if (left > 0) pool_->prefetch(next.first);
    const double cost_s =
        recompute_seconds ? recompute_seconds(limits_.block_tokens, static_cast<std::int32_t>(depth) * limits_.block_tokens) : 0;
    pool_->publish(std::span(r.blocks).subspan(depth, run.count), run.first, depth, cost_s);
    depth += run.count;
  }
  r.published = static_cast<std::int32_t>(full);
}

bool KvMemory::try_reserve(Request& r, std::int32_t tokens) {
  if (!contiguous_) throw InternalError("try_reserve on paged memory");
  const std::int64_t start = contiguous_->reserve(tokens);
  if (start < 0) return false;
  r.reserved_start = start;
  r.reserved_tokens = tokens;
  allocated_tokens_ += tokens;
  return true;
}

void KvMemory::release_blocks(Request& r) {
  pool_->release_reversed(r.blocks);  // evicts the deepest first
  r.blocks.clear();
  r.published = r.publishable_tokens = 0;
}

void KvMemory::release(Request& r) {
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

void KvMemory::remember_blocks(Request& r) {
  if (r.left_hashed || !limits_.prefix_caching || !pool_->remembers_blank()) return;
  if (limits_.unnamed_rest && r.num_hashes == 0) return;
  const auto full = static_cast<std::size_t>(r.publishable_tokens / limits_.block_tokens);
  for (auto i = static_cast<std::size_t>(r.num_hashes); i < std::min(full, r.blocks.size()); ++i)
    r.left_behind.emplace_back(r.blocks[i], pool_->takes(r.blocks[i]));
}

Preemption KvMemory::preemption_of(const Request& r, Preemption wanted) const {
  if (!r.left_hashed) return wanted;
  return footprint_->on_preempt() == Footprint::OnPreempt::kSwap ? Preemption::kSwap : Preemption::kRecompute;
}

void KvMemory::apply_policy(Request& r, StepEntry& entry, std::size_t place) {
  const SeqState& seq = charged_.emplace_back(seq_of(r, r.computed_tokens, entry.tokens));
  charged_places_.push_back(place);
  if (const FootprintStep* const known = known_step(entry.request, r, entry.tokens); known != nullptr) return take_sizes(r, *known);
  const FootprintStep done = footprint_->step(seq);
  if (done.leaves_hashed) {
    r.left_hashed = true;
    entry.leaves_hashed = true;
  }
  entry.ends_prompt = done.ends_prompt;
  take_sizes(r, done);
}

void KvMemory::charge_policy(InFlightStep& step) {
  if (charged_.empty()) return;
  footprint_->charge(charged_, step.policy);
  for (std::size_t i = 0; i < charged_.size(); ++i) step.entries[charged_places_[i]].kv_before = charged_[i].attended_tokens;
  for (PrunedPrompt& prompt : step.policy.pruned) prompt.place = charged_places_[prompt.place];
  charged_.clear();
  charged_places_.clear();
}

void KvMemory::end_policy_step(Request& r, const StepEntry& entry) {
  if (!entry.leaves_hashed && (!r.left_hashed || r.pages <= r.kept_pages)) return;
  const std::int64_t before = allocated(r);
  const bool gives_blocks = entry.leaves_hashed && r.left_hashed && !r.blocks.empty();  // false after a preemption
  if (entry.leaves_hashed && r.left_hashed) release_blocks(r);
  const std::int64_t surplus = r.pages - r.kept_pages;
  if (r.left_hashed && r.in_flight_steps == 0 && surplus > 0) {
    pool_->return_pages(surplus);
    r.pages -= surplus;
  } else if (gives_blocks && surplus < 0) {  // rewritten in place, it needs less than the blocks
    pool_->take_pages(-surplus);
    r.pages = r.kept_pages;
  }
  allocated_tokens_ += allocated(r) - before;
}

std::int64_t KvMemory::external_fragmentation_ppm() const {
  if (!contiguous_ || contiguous_->free_tokens() == 0) return 0;
  return 1'000'000 - contiguous_->largest_hole() * 1'000'000 / contiguous_->free_tokens();
}

void KvMemory::check() const {
  std::int64_t references = 0, pages = 0, live = 0, held = 0, copied = 0, swapped = 0;
  for (const HostCopies::Copy& copy : copies_.all()) {
    copied += copy.blocks;
    if (copy.full > copy.blocks || (copy.request != kNoRequest && !table_[copy.request].in_use))
      throw InternalError("a copy in CPU memory is nobody's");
  }
  for (const Request& r : table_.slots()) {
    if (!r.in_use) continue;
    references += static_cast<std::int64_t>(r.blocks.size());
    pages += r.pages;
    swapped += r.swapped_blocks;
    if (allocated(r) > 0) live += r.held_tokens();
    held += allocated(r);
    if (!contiguous_ && !r.left_hashed && r.is_running && blocks_for(r.computed_tokens) > static_cast<std::int64_t>(r.blocks.size()))
      throw InternalError("request " + std::to_string(r.number) + " computed more tokens than it has blocks for");
  }
  for (const StoreWrite& write : writes_) references += static_cast<std::int64_t>(write.from.size());
  if (pool_->check() != references) throw InternalError("block references are not conserved");
  if (pages != pool_->private_pages()) throw InternalError("private pages are not conserved");
  if (live != live_tokens_)
    throw InternalError("live tokens are miscounted: " + std::to_string(live) + " against " + std::to_string(live_tokens_));
  if (held != allocated_tokens_) throw InternalError("allocated tokens are miscounted");
  if (copied != copies_.blocks() || copied + swapped != host_used_ || host_used_ > limits_.host_blocks)
    throw InternalError("blocks in CPU memory are not conserved");
}

}  // namespace kvlab
