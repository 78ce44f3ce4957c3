// KV copies between GPU memory, CPU memory with its store of prompts, and other replicas.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "serving/copy_calls.h"
#include "serving/kv_memory.h"
#include "traces/block_hashes.h"

namespace kvlab {

bool KvMemory::try_swap_out(RequestId id, SwapCopy& copy) {
  Request& r = table_[id];
  const std::int64_t held = static_cast<std::int64_t>(r.blocks.size()) + blocks_of_pages(r.pages);
  if (held == 0) return false;
  const std::int64_t valid = valid_copy(id);
  if (!make_host_room(held)) return false;
  host_used_ += held;
  r.swapped_blocks = held;
  r.is_swapped = true;
  ++num_swapped_;
  copy = {id, held - valid, true, calls_of(r, valid, held - valid)};
  return true;
}

// Takes out the copy of the request, or of its session's latest turn. Returns the leading blocks that need no copy.
std::int64_t KvMemory::valid_copy(RequestId id) {
  const Request& r = table_[id];
  std::optional<HostCopies::Copy> copy = copies_.take(id);
  if (!copy && limits_.swap.keeps_turns && keeps_everything_) copy = copies_.take_turn(r.session, content_of(r));
  if (!copy) return 0;
  host_used_ -= copy->blocks;
  return std::min<std::int64_t>(copy->full, r.computed_tokens / limits_.block_tokens);
}

// Keys of leading blocks, with or without prefix cache.
std::vector<std::uint64_t> KvMemory::content_of(const Request& r) const {
  std::vector<std::uint64_t> keys(num_block_hashes(trace_request_of(r), limits_.block_tokens));
  BlockHashes all = keys_from(r, 0);
  for (std::uint64_t& key : keys) key = all.next();
  return keys;
}

// Drops HostCopies as needed.
bool KvMemory::make_host_room(std::int64_t blocks) {
  while (host_used_ + blocks > limits_.host_blocks) {
    const std::int64_t freed = copies_.give_up_oldest();
    if (freed == 0) return false;
    host_used_ -= freed;
  }
  return true;
}

// Copy calls for `blocks` blocks from `first` on; private pages are single copies.
std::int64_t KvMemory::calls_of(const Request& r, std::int64_t first, std::int64_t blocks) const {
  if (limits_.swap_group_blocks <= 1) return blocks;
  const std::int64_t in_blocks = std::clamp<std::int64_t>(std::ssize(r.blocks) - first, 0, blocks);
  const std::span<const BlockId> ids = std::span(r.blocks).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(in_blocks));
  return copy_calls(ids, limits_.swap_group_blocks) + blocks - in_blocks;
}

bool KvMemory::try_swap_in(Request& r, std::int32_t m) {
  hits_valid_ = false;
  const std::int64_t pages = keeps_everything_ ? 0 : footprint_->step(seq_of(r, r.computed_tokens, m)).peak_pages;
  const std::int64_t blocks = r.left_hashed ? 0 : blocks_for(r.computed_tokens + m);
  if (blocks > free_after_pages(pages)) return false;
  if (pages > 0) pool_->take_pages(pages);
  r.pages = pages;
  if (!r.left_hashed) {
    pool_->take(blocks, r.blocks);
    r.published = static_cast<std::int32_t>(blocks);  // copies lose hashes
  }
  live_tokens_ += r.held_tokens();
  allocated_tokens_ += allocated(r);
  return true;
}

void KvMemory::await_import(Request& r) {
  r.is_swapped = true;
  ++num_swapped_;
}

std::int64_t KvMemory::try_import(Request& r, std::int32_t m) {
  hits_valid_ = false;
  hits_.clear();
  if (limits_.prefix_caching && !r.left_hashed) find_hits(r);
  const std::int64_t most = std::min<std::int64_t>(std::ssize(hits_), r.computed_tokens / limits_.block_tokens);
  hits_.resize(static_cast<std::size_t>(most));
  const auto free_hits = std::count_if(hits_.begin(), hits_.end(), [&](BlockId hit) { return !pool_->is_referenced(hit); });
  const std::int64_t pages = keeps_everything_ ? 0 : footprint_->step(seq_of(r, r.computed_tokens, m)).peak_pages;
  const std::int64_t blocks = r.left_hashed ? 0 : blocks_for(r.computed_tokens + m) - most;
  if (blocks > free_after_pages(pages) - free_hits) return -1;
  for (const BlockId hit : hits_) {
    pool_->note_hit(hit);
    pool_->acquire(hit);
    r.blocks.push_back(hit);
  }
  if (pages > 0) pool_->take_pages(pages);
  r.pages = pages;
  if (blocks > 0) pool_->take(blocks, r.blocks);
  r.published = static_cast<std::int32_t>(most);
  live_tokens_ += r.held_tokens();
  allocated_tokens_ += allocated(r);
  return most;
}

SwapCopy KvMemory::copy_in(RequestId id) const {
  const Request& r = table_[id];
  return {id, r.swapped_blocks, false, calls_of(r, 0, r.swapped_blocks)};
}

void KvMemory::finish_swap_in(RequestId id) {
  Request& r = table_[id];
  const std::int64_t blocks = r.swapped_blocks;
  end_swap(r);
  if (!limits_.keeps_host_copies || !keeps_everything_ || blocks == 0) return;
  copies_.add({id, -1, blocks, r.computed_tokens / limits_.block_tokens});
  host_used_ += blocks;
}

void KvMemory::keep_turn_copy(RequestId id) {
  const Request& r = table_[id];
  if (keeps_everything_) host_used_ -= copies_.keep_turn(id, r.session, content_of(r));
}

void KvMemory::end_swap(Request& r) {
  r.is_swapped = false;
  host_used_ -= r.swapped_blocks;
  r.swapped_blocks = 0;
  --num_swapped_;
}

// ---- the store of prompts ----

bool KvMemory::begin_write(const Request& r, SwapCopy& copy) {
  const std::int64_t ratio = store->block_tokens() / limits_.block_tokens;
  StoreWrite write{store->begin_write(trace_request_of(r), std::ssize(r.blocks) / ratio), {}};
  if (write.write.fresh.empty()) {
    store->end_write(write.write);
    return false;
  }
  for (const NodeStore::Write::Fresh& fresh : write.write.fresh) {
    const auto first = r.blocks.begin() + static_cast<std::ptrdiff_t>(fresh.number * ratio);
    write.from.insert(write.from.end(), first, first + ratio);
  }
  for (const BlockId block : write.from) pool_->acquire(block);
  auto at = std::find_if(writes_.begin(), writes_.end(), [](const StoreWrite& w) { return w.from.empty(); });
  if (at == writes_.end()) at = writes_.emplace(writes_.end());
  copy = {RequestId{static_cast<std::uint32_t>(at - writes_.begin())}, std::ssize(write.from), true, std::ssize(write.write.fresh)};
  copy.is_stored = true;
  *at = std::move(write);
  return true;
}

void KvMemory::end_write(RequestId number) {
  StoreWrite& write = writes_[index(number)];
  store->end_write(write.write);
  pool_->release_reversed(write.from);
  write = {};
  hits_valid_ = false;
}

std::int64_t KvMemory::pinned_by_writes() const {
  std::int64_t pinned = 0;
  for (const StoreWrite& write : writes_) pinned += std::ssize(write.write.blocks);
  return pinned;
}

std::int32_t KvMemory::find_cached_tokens(const Request& r) {
  hits_valid_ = false;
  find_hits(r);
  return static_cast<std::int32_t>(hits_.size()) * limits_.block_tokens;
}

}  // namespace kvlab
